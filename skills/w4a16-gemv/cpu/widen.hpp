// The plain way: every nibble becomes an int, then a float, and meets its activation in an fp32 fma; lanes are 16 columns.
// Zero and scale wait for the end of a group of 128 rows: sum x (q - z) s = (sum x q - z sum x) s, so they cost nothing per
// weight. Portable vectors only, no intrinsics.

// As wide as the registers: GCC takes wider ones through memory (measured with AVX2: 0.1 to 0.4 of the rate).
#if defined(__AVX512F__)
constexpr int kRegister = 64;
#elif defined(__AVX2__)
constexpr int kRegister = 32;
#else
constexpr int kRegister = 16;
#endif
using Floating = float __attribute__((vector_size(kRegister)));
using Signed = int32_t __attribute__((vector_size(kRegister)));
using Unsigned = uint32_t __attribute__((vector_size(kRegister)));

// dot[t] = sum over COUNT rows of x * nibble for TILES tiles side by side; SUMS (1, 2, 4) partial sums per column, row j of
// a tile in sum j % SUMS: one sum waits for the latency of each fma, TILES * SUMS of them overlap.
template <int TILES, int SUMS, int COUNT>
KB_INLINE void widen_tiles(const std::byte* w, const float* x, kb::f32x16 (&dot)[TILES]) {
    static_assert(SUMS == 1 || SUMS == 2 || SUMS == 4);
    constexpr int parts = TILES * 64 / kRegister;
    Floating sum[parts][SUMS] = {};
    for (int s = 0; s < COUNT / 8; ++s) {
        for (int p = 0; p < parts; ++p) {
            const Unsigned v = kb::load_bytes<Unsigned>(w + s * TILES * 64 + p * kRegister);
            for (int j = 0; j < 8; ++j) {
                const Signed code = kb::bitcast<Signed>((v >> (j < 4 ? 8 * j : 8 * j - 28)) & 15u);
                sum[p][j % SUMS] += __builtin_convertvector(code, Floating) * x[8 * s + j];
            }
        }
    }
    for (int p = 0; p < parts; ++p) {
        for (int i = 1; i < SUMS; ++i) sum[p][0] += sum[p][i];
        std::memcpy(reinterpret_cast<char*>(dot) + p * kRegister, &sum[p][0], kRegister);
    }
}

// Activations as plain floats (a port may be bf16 or a sum of copies), and their sum per group of 128.
template <int K>
struct alignas(64) Floats {
    float x[K], sum[K / 128];

    template <class X>
    void fill(const X& view, float factor = 1.0f) {
        for (int g = 0; g < K / 128; ++g) {
            kb::f32x16 total = {};
            for (int k = 128 * g; k < 128 * (g + 1); k += 16) {
                const kb::f32x16 v = view.v16(size_t(k)) * factor;
                kb::store16(x + k, v);
                total += v;
            }
            sum[g] = kb::sum16(total);
        }
    }
};

// y[t] of one band: x . w for its columns.
template <class Matrix, int SUMS, int TILES, int K>
KB_INLINE void multiply_widened(const std::byte* band, const Floats<K>& x, kb::f32x16 (&y)[TILES]) {
    for (int t = 0; t < TILES; ++t) y[t] = kb::f32x16{};
    for (int g = 0; g < Matrix::kGroups; ++g) {
        const std::byte* block = band + size_t(g) * Matrix::kBlock;
        kb::f32x16 dot[TILES];
        widen_tiles<TILES, SUMS, 128>(block, x.x + 128 * g, dot);
        for (int t = 0; t < TILES; ++t) y[t] += (dot[t] - Matrix::zeros(block, t) * x.sum[g]) * Matrix::scales(block, t);
    }
}
