// append, 16 lanes: the new cache row, rounded to bf16 (the only place where the MLA path rounds).
KB_INLINE void put_row16(const kb::State<kb::bf16>& row, size_t at, kb::f32x16 x) {
    const kb::u32x16 u = kb::bitcast<kb::u32x16>(x);
    const kb::u32x16 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const kb::i32x16 nan = x != x;
    const kb::u16x16 bits = __builtin_convertvector(nan ? ((u >> 16) | 0x40u) : rounded, kb::u16x16);
    std::memcpy(row.data(at, 16), &bits, sizeof bits);
}

template <class Cfg>
struct Stage {
    static_assert(Cfg::LORA % 16 == 0 && Cfg::ROPE % 16 == 0, "append writes 16 values at a time: kv_lora and rope must be multiples of 16");
    struct Regs {};
    static constexpr int kPages = 0;
    static constexpr size_t kPageBytes = 0;
    static constexpr size_t kScratchBytes = 0;
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void finish(kb::Team, const kb::Launch& run, int, const typename Cfg::Ports& p, Regs&, std::byte*) {
        if (!run.writer) return;
        for (int i = 0; i < Cfg::LORA; i += 16) put_row16(p.c_kv, size_t(i), p.latent.v16(size_t(i)));
        for (int i = 0; i < Cfg::ROPE; i += 16) put_row16(p.k_rope, size_t(i), p.kr.v16(size_t(i)));
    }
};
