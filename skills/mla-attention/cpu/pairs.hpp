// Pairs of bf16 in 32-bit lanes: what a bf16 dot-product instruction eats. dot2 adds the products of both halves to fp32
// lanes; without the instruction it does the same with two multiply-adds (halves widened by a shift and a mask).
template <int L>
using PairLanes = typename Lanes<L>::U;
template <int L>
struct SameBits {  // the lanes of PairLanes<L>, narrower and wider (in a struct: GCC forgets the size of a typedef local to a template)
    typedef uint16_t Halves __attribute__((vector_size(4 * L)));
    typedef uint64_t Twos __attribute__((vector_size(4 * L)));
};

template <int L>
KB_INLINE typename Lanes<L>::F dot2(typename Lanes<L>::F sum, PairLanes<L> a, PairLanes<L> b) {
#if defined(__AVX512BF16__)
    if constexpr (L == 16)
        return kb::bitcast<typename Lanes<L>::F>(
            _mm512_dpbf16_ps(kb::bitcast<__m512>(sum), kb::bitcast<__m512bh>(a), kb::bitcast<__m512bh>(b)));
#endif
    using F = typename Lanes<L>::F;
    sum += kb::bitcast<F>(a << 16) * kb::bitcast<F>(b << 16);
    return sum + kb::bitcast<F>(a & 0xffff0000u) * kb::bitcast<F>(b & 0xffff0000u);
}
// The P pairs at p, again and again over all lanes: lane i holds pair i % P.
template <int L, int P>
KB_INLINE PairLanes<L> repeat(const void* p) {
    using U = PairLanes<L>;
    if constexpr (P == L) {
        return kb::load_bytes<U>(p);
    } else if constexpr (P == 1) {
        return U{} + kb::load_bytes<uint32_t>(p);
    } else if constexpr (P == 2) {
        return kb::bitcast<U>(typename SameBits<L>::Twos{} + kb::load_bytes<uint64_t>(p));
    } else {
#if defined(__AVX512F__)  // masked by all ones: GCC warns inside the plain forms
        if constexpr (L == 16 && P == 4)
            return kb::bitcast<U>(_mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128(static_cast<const __m128i*>(p))));
        if constexpr (L == 16 && P == 8)
            return kb::bitcast<U>(_mm512_maskz_broadcast_i64x4(0xff, _mm256_loadu_si256(static_cast<const __m256i*>(p))));
#endif
        U u{};
        for (int i = 0; i < L; i += P) std::memcpy(reinterpret_cast<char*>(&u) + i * 4, p, P * 4);
        return u;
    }
}
template <int L>
struct Unpack {  // masks, spelled out by the compiler: a loop of more than 16 rounds would stay a loop
    uint16_t low[2 * L], high[2 * L];
    constexpr Unpack() : low(), high() {
        for (int i = 0; i < 2 * L; ++i) {
            low[i] = uint16_t(i / 8 * 8 + i % 8 / 2 + i % 2 * 2 * L);
            high[i] = uint16_t(low[i] + 4);
        }
    }
};
// Two rows of 2 * L bf16 -> pairs (a[c], b[c]) in two vectors, as an unpack within 128 bits puts them; `woven` says where.
template <int L>
KB_INLINE void weave(const kb::bf16* a, const kb::bf16* b, PairLanes<L>& low, PairLanes<L>& high) {
    using Row = typename SameBits<L>::Halves;
    static constexpr Unpack<L> kMask;
    const Row first = kb::load_bytes<Row>(kMask.low), second = kb::load_bytes<Row>(kMask.high);
    const Row x = kb::load_bytes<Row>(a), y = kb::load_bytes<Row>(b);
    low = kb::bitcast<PairLanes<L>>(__builtin_shuffle(x, y, first));
    high = kb::bitcast<PairLanes<L>>(__builtin_shuffle(x, y, second));
}
// Place of column c after weave<L>: 2 * L neighbouring columns keep together.
template <int L>
constexpr int woven(int c) {
    const int within = c % (2 * L);
    return c - within + within % 8 / 4 * L + within / 8 * 4 + within % 4;
}
// a[0 .. P-1], each with P neighbouring lanes to be summed -> a[0]: the sums of a[0] first, then those of a[1], ...
template <int L, int P>
KB_INLINE void sum_neighbours(typename Lanes<L>::F* a) {
    if constexpr (P > 1) {
        using I = typename Lanes<L>::I;
        I even{}, odd{};
        for (int i = 0; i < L; ++i) even[i] = 2 * i, odd[i] = 2 * i + 1;
#pragma GCC unroll 8
        for (int i = 0; i < P / 2; ++i)
            a[i] = __builtin_shuffle(a[2 * i], a[2 * i + 1], even) + __builtin_shuffle(a[2 * i], a[2 * i + 1], odd);
        sum_neighbours<L, P / 2>(a);
    }
}
