// expert_up: act[j] = silu(g_j) * u_j. A page holds gate and up of the same columns, so nothing is carried from page to page.
template <class C>
struct Stage {
    using Ports = typename C::Ports;
    static_assert(C::SEGMENTS == 2, "segment 0 is gate, segment 1 is up");
    static constexpr int kPart = C::N / 2, kTiles = kPart % 32 == 0 ? 4 : 2, kOut = 8 * kTiles;  // outputs of one page
    using Matrix = Bands<C::K, C::N, kTiles>;
    using Image = Digits<C::LEVELS, 128>;
    struct Regs {};
    static constexpr int kPages = Matrix::kBands;
    static constexpr size_t kPageBytes = Matrix::kBand;
    static constexpr size_t kScratchBytes = sizeof(Image) * Matrix::kGroups;

    static typename Matrix::Place where(int n) {
        const int c = n % Matrix::kColumns;
        return {c / kOut, n / Matrix::kColumns * kOut + c % kOut};
    }
    static const char* pack(const kb::Unit& u, std::byte* dst) {
        for (int s = 0; s < 2; ++s)
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
        kb::f32x16 y[kTiles];
        Image* x = image(scratch);
        Matrix::multiply(data, x, y, [&](int g) {
            if constexpr (!C::WHOLE_X)  // a box of x: group by group, so that the stream never pauses for long
                if (page == 0) quantise_group(p.x, g, x[g]);
        });
        for (int t = 0; t < kTiles / 2; ++t)
            p.act.put16(size_t(page) * kOut + 16 * t, kb::silu16(y[t]) * y[kTiles / 2 + t]);
    }
    static void finish(kb::Team, const kb::Launch&, int, const Ports&, Regs&, std::byte*) {}
};
