// expert_down: y[n] += w[slot] * sum_k x[k] w[k,n]; the routing weight goes into the scales of the digits.
template <class C>
struct Stage {
    using Ports = typename C::Ports;
    using Matrix = Bands<C::K, C::N, tiles_of(C::N)>;
    using Image = Digits<C::LEVELS, 128>;
    struct Regs {};
    static constexpr int kPart = C::N / C::SEGMENTS;
    static_assert(kPart % 16 == 0, "a tile of 16 columns lies in one segment");
    static constexpr int kPages = Matrix::kBands;
    static constexpr size_t kPageBytes = Matrix::kBand;
    static constexpr size_t kScratchBytes = sizeof(Image) * Matrix::kGroups;

    static typename Matrix::Place where(int n) { return {n / kPart, n % kPart}; }
    static const char* pack(const kb::Unit& u, std::byte* dst) {
        for (int s = 0; s < C::SEGMENTS; ++s)
            if (const char* why = refuse_w4(u.w4(s))) return why;
        return Matrix::pack(u, dst, where);
    }
    static void unpack(const std::byte* unit, float* w) { Matrix::unpack(unit, w, where, kPart); }
    static Image* image(std::byte* scratch) { return reinterpret_cast<Image*>(scratch); }

    static void begin(kb::Team, const kb::Launch&, int item, const Ports& p, Regs&, std::byte* scratch) {
        const float share = p.w[size_t(item / C::PERIOD)];
        for (int g = 0; g < Matrix::kGroups; ++g) {
            quantise_group(p.x, g, image(scratch)[g]);
            image(scratch)[g].scale *= share;
        }
    }
    static KB_INLINE void consume(kb::Team, const kb::Launch&, int, int page, const std::byte* data, const Ports& p, Regs&, std::byte* scratch) {
        kb::f32x16 y[Matrix::kColumns / 16];
        Matrix::multiply(data, image(scratch), y, [](int) {});
        for (int t = 0; t < Matrix::kColumns / 16; ++t) p.y.put16(size_t(page) * Matrix::kColumns + 16 * t, y[t]);
    }
    static void finish(kb::Team, const kb::Launch&, int, const Ports&, Regs&, std::byte*) {}
};
