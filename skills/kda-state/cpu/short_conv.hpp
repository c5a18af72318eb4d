// short_conv, 16 channels at a time. The packed unit is [3][4 taps][D]: taps apart, so that channels are contiguous.
KB_INLINE kb::u16x16 round16(kb::f32x16 x) {  // to bf16, nearest even; NaN stays NaN
    const kb::u32x16 u = kb::bitcast<kb::u32x16>(x);
    const kb::u32x16 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const kb::i32x16 nan = x != x;
    return __builtin_convertvector(nan ? ((u >> 16) | 0x40u) : rounded, kb::u16x16);
}

template <class Cfg>
struct Stage {
    static_assert(Cfg::D % 16 == 0, "short_conv works on 16 channels at a time: a head must have a multiple of 16");
    struct Regs {};
    static constexpr int kPages = 1;
    static constexpr size_t kPageBytes = size_t(3 * 4 * 2) * Cfg::D;
    static constexpr size_t kScratchBytes = 0;

    static size_t place(int m, int d, int t) { return size_t((m * 4 + t) * Cfg::D + d) * 2; }
    static const char* pack(const kb::Unit& u, std::byte* dst) {
        const std::byte* raw = reinterpret_cast<const std::byte*>(u.raw(0));
        for (int m = 0; m < 3; ++m)
            for (int d = 0; d < Cfg::D; ++d)
                for (int t = 0; t < 4; ++t) {
                    const size_t channel = size_t(m) * Cfg::CH + size_t(u.local()) * Cfg::D + size_t(d);
                    std::memcpy(dst + place(m, d, t), raw + (channel * 4 + size_t(t)) * 2, 2);
                }
        return nullptr;
    }
    static void unpack(const std::byte* unit, float* w) {
        for (int m = 0; m < 3; ++m)
            for (int d = 0; d < Cfg::D; ++d)
                for (int t = 0; t < 4; ++t)
                    w[(m * Cfg::D + d) * 4 + t] = kb::to_float(kb::load_bytes<kb::bf16>(unit + place(m, d, t)));
    }
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void consume(kb::Team, const kb::Launch& run, int, int, const std::byte* data, const typename Cfg::Ports& p, Regs&,
                        std::byte*) {
        const kb::State<kb::bf16> windows[3] = {p.cq, p.ck, p.cv};
        for (int m = 0; m < 3; ++m)
            for (int d = 0; d < Cfg::D; d += 16) {
                kb::bf16* row[3];
                for (int t = 0; t < 3; ++t) row[t] = windows[m].data(size_t(t) * Cfg::CH + size_t(d), 16);
                const kb::bf16* w = reinterpret_cast<const kb::bf16*>(data) + m * 4 * Cfg::D + d;
                const kb::f32x16 fresh = p.y.v16(size_t(m * Cfg::D + d));
                kb::f32x16 sum = kb::load16(row[0]) * kb::load16(w);
                sum += kb::load16(row[1]) * kb::load16(w + Cfg::D);
                sum += kb::load16(row[2]) * kb::load16(w + 2 * Cfg::D);
                sum += fresh * kb::load16(w + 3 * Cfg::D);
                p.qkv.put16(size_t(m * Cfg::D + d), kb::silu16(sum));
                if (!run.writer) continue;
                std::memcpy(row[0], row[1], 32);
                std::memcpy(row[1], row[2], 32);
                const kb::u16x16 bits = round16(fresh);
                std::memcpy(row[2], &bits, 32);
            }
    }
    static void finish(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
};
