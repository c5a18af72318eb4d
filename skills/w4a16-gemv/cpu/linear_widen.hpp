// linear_w4, the plain way. A whole x is copied to floats once per block and step, an item's box of x per item.
template <class C>
struct Stage : SideBySide<C, C::TILES> {
    using Ports = typename C::Ports;
    using Packed = SideBySide<C, C::TILES>;
    using Matrix = typename Packed::Matrix;
    using Image = Floats<C::K>;
    struct Regs {};
    static constexpr size_t kScratchBytes = sizeof(Image);
    static Image& image(std::byte* scratch) { return *reinterpret_cast<Image*>(scratch); }

    static void enter(kb::Team, const kb::Launch&, const Ports& p, std::byte* scratch) {
        if constexpr (C::WHOLE_X) image(scratch).fill(p.x);
    }
    static void begin(kb::Team, const kb::Launch&, int, const Ports& p, Regs&, std::byte* scratch) {
        if constexpr (!C::WHOLE_X) image(scratch).fill(p.x);
    }
    static KB_INLINE void consume(kb::Team, const kb::Launch&, int, int page, const std::byte* data, const Ports& p, Regs&, std::byte* scratch) {
        kb::f32x16 y[Packed::kTiles];
        multiply_widened<Matrix, C::SUMS>(data, image(scratch), y);
        for (int t = 0; t < Packed::kTiles; ++t) p.y.put16(size_t(page) * Matrix::kColumns + 16 * t, y[t]);
    }
    static void finish(kb::Team, const kb::Launch&, int, const Ports&, Regs&, std::byte*) {}
};
