// expert_down: y[n] += w[slot] * sum_k x[k] w[k,n]; the routing weight goes into the scales of the digits.
template <class C>
struct Stage : SideBySide<C, C::BAND> {
    using Ports = typename C::Ports;
    using Packed = SideBySide<C, C::BAND>;
    using Matrix = typename Packed::Matrix;
    using Image = Digits<C::LEVELS, 128>;
    struct Regs {};
    static constexpr size_t kScratchBytes = sizeof(Image) * Matrix::kGroups;
    static Image* image(std::byte* scratch) { return reinterpret_cast<Image*>(scratch); }

    static void begin(kb::Team, const kb::Launch&, int item, const Ports& p, Regs&, std::byte* scratch) {
        const float share = p.w[size_t(item / C::PERIOD)];
        for (int g = 0; g < Matrix::kGroups; ++g) {
            quantise_group(p.x, g, image(scratch)[g]);
            image(scratch)[g].scale *= share;
        }
    }
    static KB_INLINE void consume(kb::Team, const kb::Launch&, int, int page, const std::byte* data, const Ports& p, Regs&, std::byte* scratch) {
        kb::f32x16 y[Packed::kTiles];
        multiply_digits<Matrix>(data, image(scratch), y, [](int) {});
        for (int t = 0; t < Packed::kTiles; ++t) p.y.put16(size_t(page) * Matrix::kColumns + 16 * t, y[t]);
    }
    static void finish(kb::Team, const kb::Launch&, int, const Ports&, Regs&, std::byte*) {}
};
