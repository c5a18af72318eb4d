// linear_w4: y[n] = sum_k x[k] w[k,n]. A whole x is quantised once per block and step, an item's box of x per item.
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

    static void enter(kb::Team, const kb::Launch&, const Ports& p, std::byte* scratch) {
        if constexpr (C::WHOLE_X)
            for (int g = 0; g < Matrix::kGroups; ++g) quantise_group(p.x, g, image(scratch)[g]);
    }
    static void begin(kb::Team, const kb::Launch&, int, const Ports&, Regs&, std::byte*) {}
    static KB_INLINE void consume(kb::Team, const kb::Launch&, int, int page, const std::byte* data, const Ports& p, Regs&, std::byte* scratch) {
        kb::f32x16 y[Matrix::kColumns / 16];
        Image* x = image(scratch);
        Matrix::multiply(data, x, y, [&](int g) {
            if constexpr (!C::WHOLE_X)  // a box of x: group by group, so that the stream never pauses for long
                if (page == 0) quantise_group(p.x, g, x[g]);
        });
        for (int t = 0; t < Matrix::kColumns / 16; ++t) p.y.put16(size_t(page) * Matrix::kColumns + 16 * t, y[t]);
    }
    static void finish(kb::Team, const kb::Launch&, int, const Ports&, Regs&, std::byte*) {}
};
