// Sine and cosine of position * 10000^(-2j/N) for the N/2 pairs of a rotary embedding, right for positions past 1e6.
// Frequencies are made at compile time; the angle and its reduction are double (an angle of 1e6 has lost 1e-10 of a turn,
// in float it would have lost 0.06); the polynomials are double too, eight pairs at a time.
using RopeF64 = double __attribute__((vector_size(64)));
using RopeI64 = int64_t __attribute__((vector_size(64)));
using RopeI32 = int32_t __attribute__((vector_size(32)));

// 10000^(-2j/n): exp(-x) = 2^-m * exp(m ln2 - x), then the series.
constexpr double rope_frequency(int j, int n) {
    const double x = 2.0 * j / n * 9.210340371976182736;
    const int m = int(x * 1.4426950408889634 + 0.5);
    const double r = (m * 6.93147180369123816490e-01 - x) + m * 1.90821492927058770002e-10;
    double term = 1.0, sum = 1.0;
    for (int i = 1; i < 24; ++i) term *= r / i, sum += term;
    for (int i = 0; i < m; ++i) sum *= 0.5;
    return sum;
}
template <int N>
struct RopeTable {
    static constexpr int kPairs = N / 2, kPadded = (kPairs + 7) / 8 * 8;
    double frequency[kPadded];
    constexpr RopeTable() : frequency() {
        for (int j = 0; j < kPairs; ++j) frequency[j] = rope_frequency(j, N);
    }
};

// cosine[j], sine[j] for j < N/2; both arrays hold RopeTable<N>::kPadded floats.
template <int N>
inline void rope_angles(int64_t position, float* cosine, float* sine) {
    static_assert(N % 2 == 0, "a rotary embedding turns pairs: its width must be even");
    static constexpr RopeTable<N> table{};
    for (int j = 0; j < RopeTable<N>::kPadded; j += 8) {
        const RopeF64 angle = kb::load_bytes<RopeF64>(table.frequency + j) * double(position);
        // Nearest multiple of pi/2; the product with the 33-bit head of pi/2 is exact below 2^20 turns of a quarter.
        const RopeI32 quarter = __builtin_convertvector(angle * 0.63661977236758134308 + 0.5, RopeI32);
        const RopeF64 turns = __builtin_convertvector(quarter, RopeF64);
        const RopeF64 r = (angle - turns * 1.57079632673412561417) - turns * 6.07710050650619224932e-11;
        const RopeF64 z = r * r;
        RopeF64 s = z * (-1.0 / 39916800) + 1.0 / 362880;
        s = s * z - 1.0 / 5040;
        s = s * z + 1.0 / 120;
        s = s * z - 1.0 / 6;
        s = s * z * r + r;
        RopeF64 c = z * (1.0 / 479001600) - 1.0 / 3628800;
        c = c * z + 1.0 / 40320;
        c = c * z - 1.0 / 720;
        c = c * z + 1.0 / 24;
        c = c * z - 0.5;
        c = c * z + 1.0;
        const RopeI64 odd = __builtin_convertvector(-(quarter & 1), RopeI64);
        const RopeI64 sine_sign = __builtin_convertvector(-((quarter >> 1) & 1), RopeI64);
        const RopeI64 cosine_sign = __builtin_convertvector(-(((quarter + 1) >> 1) & 1), RopeI64);
        const RopeF64 s1 = odd ? c : s, c1 = odd ? s : c;
        const RopeF64 s2 = sine_sign ? -s1 : s1, c2 = cosine_sign ? -c1 : c1;
        for (int i = 0; i < 8; ++i) {
            sine[j + i] = float(s2[i]);
            cosine[j + i] = float(c2[i]);
        }
    }
}
