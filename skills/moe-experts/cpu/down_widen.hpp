// expert_down, the plain way: y[n] += sum_k (w[slot] x[k]) w[k,n]; the routing weight is multiplied into the floats of x.
template <class C>
struct Stage : SideBySide<C, C::TILES> {
    using Ports = typename C::Ports;
    using Packed = SideBySide<C, C::TILES>;
    using Matrix = typename Packed::Matrix;
    using Image = Floats<C::K>;
    struct Regs {};
    static constexpr size_t kScratchBytes = sizeof(Image);
    static Image& image(std::byte* scratch) { return *reinterpret_cast<Image*>(scratch); }

    static void begin(kb::Team, const kb::Launch&, int item, const Ports& p, Regs&, std::byte* scratch) {
        image(scratch).fill(p.x, p.w[size_t(item / C::PERIOD)]);
    }
    static KB_INLINE void consume(kb::Team, const kb::Launch&, int, int page, const std::byte* data, const Ports& p, Regs&, std::byte* scratch) {
        kb::f32x16 y[Packed::kTiles];
        multiply_widened<Matrix, C::SUMS>(data, image(scratch), y);
        for (int t = 0; t < Packed::kTiles; ++t) p.y.put16(size_t(page) * Matrix::kColumns + 16 * t, y[t]);
    }
    static void finish(kb::Team, const kb::Launch&, int, const Ports&, Regs&, std::byte*) {}
};
