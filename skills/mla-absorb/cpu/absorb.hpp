// absorb, by digits: qa[r] = sum_d q[d] w[r,d] and qr = RoPE of q's tail. Per group of 128 rows r, q[d] * scale[d] becomes
// digits; lanes are 16 rows, 4 d's per lane.
template <class C>
struct Stage : AbsorbPage<C, C::BAND> {
    using Ports = typename C::Ports;
    using Page = AbsorbPage<C, C::BAND>;
    using Image = Digits<C::LEVELS, C::NOPE>;
    using Table = RopeTable<C::ROPE>;
    struct Regs {};
    static constexpr size_t kScratchBytes = sizeof(Table);

    static void enter(kb::Team, const kb::Launch& run, const Ports&, std::byte* scratch) { reinterpret_cast<Table*>(scratch)->fill(run.position); }
    static void begin(kb::Team, const kb::Launch&, int, const Ports& p, Regs&, std::byte* scratch) {
        rotate_tail(*reinterpret_cast<const Table*>(scratch), p.q, C::NOPE, C::ROPE, p.qr);
    }
    static KB_INLINE void consume(kb::Team, const kb::Launch&, int, int page, const std::byte* data, const Ports& p, Regs&, std::byte*) {
        kb::f32x16 v[C::NOPE / 16];
        const kb::bf16* scales = reinterpret_cast<const kb::bf16*>(data);
        for (int i = 0; i < C::NOPE / 16; ++i) v[i] = p.q.v16(size_t(16 * i)) * kb::load16(scales + 16 * i);
        Image x;
        quantise<C::LEVELS, C::NOPE>(v, x, [data](int i, kb::i32x16 integers) { return integers * widen_u8(data + Page::kZeros + 16 * i); });
        for (int band = 0; band < Page::kBands; ++band) {
            kb::i32x16 dot[C::BAND];
            dot_tiles<C::BAND>(data + Page::kCodes + band * Page::kBand, x, dot);
            for (int t = 0; t < C::BAND; ++t) p.qa.put16(size_t(page) * 128 + 16 * (band * C::BAND + t), to_f32(dot[t] - x.sum) * x.scale);
        }
    }
    static void finish(kb::Team, const kb::Launch&, int, const Ports&, Regs&, std::byte*) {}
};
