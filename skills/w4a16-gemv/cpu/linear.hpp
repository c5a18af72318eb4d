// linear_w4: y[n] = sum_k x[k] w[k,n]. A whole x is quantised once per block and step, an item's box of x per item.
template <class C>
struct Stage : SideBySide<C, C::BAND> {
    using Ports = typename C::Ports;
    using Packed = SideBySide<C, C::BAND>;
    using Matrix = typename Packed::Matrix;
    using Image = Digits<C::LEVELS, 128>;
    struct Regs {};
    static constexpr size_t kScratchBytes = sizeof(Image) * Matrix::kGroups;
    static Image* image(std::byte* scratch) { return reinterpret_cast<Image*>(scratch); }

    static void enter(kb::Team, const kb::Launch&, const Ports& p, std::byte* scratch) {
        if constexpr (C::WHOLE_X)
            for (int g = 0; g < Matrix::kGroups; ++g) quantise_group(p.x, g, image(scratch)[g]);
    }
    static void begin(kb::Team, const kb::Launch&, int, const Ports&, Regs&, std::byte*) {}
    static KB_INLINE void consume(kb::Team, const kb::Launch&, int, int page, const std::byte* data, const Ports& p, Regs&, std::byte* scratch) {
        kb::f32x16 y[Packed::kTiles];
        Image* x = image(scratch);
        multiply_digits<Matrix>(data, x, y, [&](int g) {
            if constexpr (!C::WHOLE_X)  // a box of x: group by group, so that the stream never pauses for long
                if (page == 0) quantise_group(p.x, g, x[g]);
        });
        for (int t = 0; t < Packed::kTiles; ++t) p.y.put16(size_t(page) * Matrix::kColumns + 16 * t, y[t]);
    }
    static void finish(kb::Team, const kb::Launch&, int, const Ports&, Regs&, std::byte*) {}
};
