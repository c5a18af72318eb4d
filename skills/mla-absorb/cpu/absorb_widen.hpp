// absorb, the plain way: qa[r] = sum_d (q[d] scale[d]) (code[r,d] - zero[d]) in fp32, the zeros as one sum per group of 128
// rows; qr = RoPE of q's tail.
template <class C>
struct Stage : AbsorbPage<C, C::TILES> {
    using Ports = typename C::Ports;
    using Page = AbsorbPage<C, C::TILES>;
    using Table = RopeTable<C::ROPE>;
    struct Regs {};
    static constexpr size_t kScratchBytes = sizeof(Table);

    static void enter(kb::Team, const kb::Launch& run, const Ports&, std::byte* scratch) { reinterpret_cast<Table*>(scratch)->fill(run.position); }
    static void begin(kb::Team, const kb::Launch&, int, const Ports& p, Regs&, std::byte* scratch) {
        rotate_tail(*reinterpret_cast<const Table*>(scratch), p.q, C::NOPE, C::ROPE, p.qr);
    }
    static KB_INLINE void consume(kb::Team, const kb::Launch&, int, int page, const std::byte* data, const Ports& p, Regs&, std::byte*) {
        alignas(64) float x[C::NOPE];
        kb::f32x16 zeros = {};
        for (int i = 0; i < C::NOPE; i += 16) {
            const kb::f32x16 v = p.q.v16(size_t(i)) * kb::load16(reinterpret_cast<const kb::bf16*>(data) + i);
            kb::store16(x + i, v);
            zeros += v * to_f32(widen_u8(data + Page::kZeros + i));
        }
        const float taken = kb::sum16(zeros);
        for (int band = 0; band < Page::kBands; ++band) {
            kb::f32x16 dot[C::TILES];
            widen_tiles<C::TILES, C::SUMS, C::NOPE>(data + Page::kCodes + band * Page::kBand, x, dot);
            for (int t = 0; t < C::TILES; ++t) p.qa.put16(size_t(page) * 128 + 16 * (band * C::TILES + t), dot[t] - taken);
        }
    }
    static void finish(kb::Team, const kb::Launch&, int, const Ports&, Regs&, std::byte*) {}
};
