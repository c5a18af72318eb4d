// The packed unit of expert_up: a page is a band that holds columns of gate and the same columns of up, so that nothing is
// carried from page to page. At least two tiles: one of gate, one of up.
template <class C, int MOST>
struct GateUp {
    static_assert(C::SEGMENTS == 2, "segment 0 is gate, segment 1 is up");
    static constexpr int kPart = C::N / 2, kHalf = tiles_of(kPart, MOST > 1 ? MOST / 2 : 1), kTiles = 2 * kHalf;
    static constexpr int kOut = 16 * kHalf;  // outputs of one page
    using Matrix = Bands<C::K, C::N, kTiles>;
    static constexpr int kPages = Matrix::kBands;
    static constexpr size_t kPageBytes = Matrix::kBand;

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
    // act[j] = silu(g_j) * u_j for the columns of `page`.
    template <class Act>
    static KB_INLINE void put(const Act& act, int page, const kb::f32x16 (&y)[kTiles]) {
        for (int t = 0; t < kHalf; ++t) act.put16(size_t(page) * kOut + 16 * t, kb::silu16(y[t]) * y[kHalf + t]);
    }
};
