// Vectors of the target's own width for attend (64-byte vectors are kept in memory by compilers without AVX-512).
#if defined(__AVX512F__)
constexpr int kNative = 16, kRegisters = 32;
#elif defined(__AVX__)
constexpr int kNative = 8, kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kNative = 4, kRegisters = 32;
#else
constexpr int kNative = 4, kRegisters = 16;
#endif
template <int L>
struct Lanes {
    typedef float F __attribute__((vector_size(4 * L)));
    typedef uint32_t U __attribute__((vector_size(4 * L)));
    typedef uint16_t H __attribute__((vector_size(2 * L)));
    typedef int32_t I __attribute__((vector_size(4 * L)));
};
template <int L>
KB_INLINE typename Lanes<L>::F load_f(const float* p) {
    return kb::load_bytes<typename Lanes<L>::F>(p);
}
template <int L>
KB_INLINE typename Lanes<L>::F load_f(const kb::bf16* p) {
    using U = typename Lanes<L>::U;
    return kb::bitcast<typename Lanes<L>::F>(__builtin_convertvector(kb::load_bytes<typename Lanes<L>::H>(p), U) << 16);
}
template <class F>
KB_INLINE void store_f(float* p, F v) {
    std::memcpy(p, &v, sizeof v);
}
// Two vectors from 2*L neighbouring bf16: the even columns, then the odd ones. One shift and one mask widen 2*L values;
// widening in order would take a zero-extension per vector on top.
template <int L>
KB_INLINE void load_pairs(const kb::bf16* p, typename Lanes<L>::F& even, typename Lanes<L>::F& odd) {
    const auto u = kb::load_bytes<typename Lanes<L>::U>(p);
    even = kb::bitcast<typename Lanes<L>::F>(u << 16);
    odd = kb::bitcast<typename Lanes<L>::F>(u & 0xffff0000u);
}
// Where load_pairs<kNative> puts column c of a row, the column order of everything inside attend.
constexpr int paired(int c) {
    const int base = c / (2 * kNative) * (2 * kNative), within = c % (2 * kNative);
    return base + within % 2 * kNative + within / 2;
}
