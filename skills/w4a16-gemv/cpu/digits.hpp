// Integer digits for int4 weights: activations become one or two signed bytes per element with one scale per group, and
// products with the unsigned nibbles are summed in int32, exactly. All instruction sets give the same integers.
// Tiles and blocks: bands.hpp.

// ---- activations ----

// x[i] = scale * (256 * hi[i] + lo[i]) with two levels (|.| <= 32639), scale * hi[i] with one (|.| <= 127).
template <int LEVELS, int COUNT>
struct alignas(64) Digits {
    static_assert((LEVELS == 1 || LEVELS == 2) && COUNT % 32 == 0);
    int8_t plane[LEVELS][COUNT];
    float scale;
    int32_t sum;  // of the integers (times what `weigh` says): what the zero points take away
};

using i32x8 = int32_t __attribute__((vector_size(32)));
using i32x4 = int32_t __attribute__((vector_size(16)));

template <class Half, class Whole>
KB_INLINE Half half_of(const Whole& v, int which) {
    Half h;
    std::memcpy(&h, reinterpret_cast<const char*>(&v) + sizeof(Half) * which, sizeof(Half));
    return h;
}
KB_INLINE int32_t top_lane(kb::i32x16 v) {
    const i32x8 a = half_of<i32x8>(v, 0), b = half_of<i32x8>(v, 1), c = a > b ? a : b;
    const i32x4 d = half_of<i32x4>(c, 0), e = half_of<i32x4>(c, 1), f = d > e ? d : e;
    const int32_t g = f[0] > f[1] ? f[0] : f[1], h = f[2] > f[3] ? f[2] : f[3];
    return g > h ? g : h;
}
KB_INLINE int32_t sum_lanes(kb::i32x16 v) {
    const i32x8 a = half_of<i32x8>(v, 0) + half_of<i32x8>(v, 1);
    const i32x4 b = half_of<i32x4>(a, 0) + half_of<i32x4>(a, 1);
    return (b[0] + b[1]) + (b[2] + b[3]);
}
KB_INLINE void store_bytes(int8_t* to, kb::i32x16 v) {
    using i8x16 = int8_t __attribute__((vector_size(16)));
    const i8x16 bytes = __builtin_convertvector(v, i8x16);
    std::memcpy(to, &bytes, 16);
}

// An infinity or NaN in x makes the scale infinite or NaN, hence every output of the group NaN. A group whose
// largest element is below 1e-30 counts as zero. `weigh(i, v)`: what lanes 16 i .. of the integers add to the sum.
template <int LEVELS, int COUNT, class Weigh>
KB_INLINE void quantise(const kb::f32x16 (&x)[COUNT / 16], Digits<LEVELS, COUNT>& out, Weigh weigh) {
    constexpr float limit = LEVELS == 2 ? 32639.0f : 127.0f;
    kb::i32x16 top = {};
    for (int i = 0; i < COUNT / 16; ++i) {
        const kb::i32x16 magnitude = kb::bitcast<kb::i32x16>(x[i]) & 0x7fffffff;  // ordered like the floats, NaN on top
        top = magnitude > top ? magnitude : top;
    }
    const int32_t most = top_lane(top);
    const float largest = kb::bitcast<float>(most);
    const float inverse = largest > 1e-30f ? limit / largest : 0.0f;
    const int32_t keep = most < 0x7f800000 ? -1 : 0;  // all digits 0 if one is not finite: 0 * scale is NaN
    kb::i32x16 total = {};
    for (int i = 0; i < COUNT / 16; ++i) {
        // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low mantissa bits.
        const kb::f32x16 kept = kb::bitcast<kb::f32x16>(kb::bitcast<kb::i32x16>(x[i]) & keep);
        const kb::i32x16 v = kb::bitcast<kb::i32x16>(kept * inverse + 12582912.0f) - 0x4b400000;
        total += weigh(i, v);
        if constexpr (LEVELS == 2) {
            const kb::i32x16 hi = (v + 128) >> 8;
            store_bytes(out.plane[0] + 16 * i, hi);
            store_bytes(out.plane[1] + 16 * i, v - (hi << 8));
        } else {
            store_bytes(out.plane[0] + 16 * i, v);
        }
    }
    out.scale = largest * (1.0f / limit);
    out.sum = sum_lanes(total);
}

// Group `g` of 128 from view `x`.
template <int LEVELS, class X>
KB_INLINE void quantise_group(const X& x, int g, Digits<LEVELS, 128>& out) {
    kb::f32x16 v[8];
    for (int i = 0; i < 8; ++i) v[i] = x.v16(size_t(g) * 128 + 16 * i);
    quantise<LEVELS, 128>(v, out, [](int, kb::i32x16 integers) { return integers; });
}

// ---- dot products ----

KB_INLINE int32_t four(const int8_t* p) { return kb::load_bytes<int32_t>(p); }

// dot[t] = sum over the COUNT rows of nibble * digit integer, for TILES tiles. The order of
// loads is the order of the bytes: the hardware prefetcher alone then keeps the read rate (prefetch instructions cost 30 %).
template <int TILES, int LEVELS, int COUNT>
KB_INLINE void dot_tiles(const std::byte* w, const Digits<LEVELS, COUNT>& d, kb::i32x16 (&dot)[TILES]) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    __m512i acc[LEVELS][TILES];
    for (int l = 0; l < LEVELS; ++l)
        for (int t = 0; t < TILES; ++t) acc[l][t] = _mm512_setzero_si512();
    const __m512i low = _mm512_set1_epi8(15);
    const auto dp = [](__m512i a, __m512i u, __m512i s) {
#if defined(__AVX512VNNI__)
        return _mm512_dpbusd_epi32(a, u, s);
#else
        return _mm512_add_epi32(a, _mm512_madd_epi16(_mm512_maddubs_epi16(u, s), _mm512_set1_epi16(1)));
#endif
    };
#pragma GCC unroll 4
    for (int s = 0; s < COUNT / 8; ++s) {
        __m512i x[LEVELS][2];
        for (int l = 0; l < LEVELS; ++l)
            for (int h = 0; h < 2; ++h) x[l][h] = _mm512_set1_epi32(four(d.plane[l] + 8 * s + 4 * h));
        for (int t = 0; t < TILES; ++t) {
            const int at = (s * TILES + t) * 64;
            const __m512i v = _mm512_loadu_si512(w + at);
            const __m512i a = _mm512_and_si512(v, low), b = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
            for (int l = 0; l < LEVELS; ++l) acc[l][t] = dp(dp(acc[l][t], a, x[l][0]), b, x[l][1]);
        }
    }
    for (int t = 0; t < TILES; ++t) {
        dot[t] = (kb::i32x16)acc[0][t];
        if constexpr (LEVELS == 2) dot[t] = (dot[t] << 8) + (kb::i32x16)acc[1][t];
    }
#elif defined(__AVX2__)
    const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);
    __m256i acc[LEVELS][TILES][2];
    for (int l = 0; l < LEVELS; ++l)
        for (int t = 0; t < TILES; ++t) acc[l][t][0] = acc[l][t][1] = _mm256_setzero_si256();
    for (int s = 0; s < COUNT / 8; s += 4) {  // 32 rows at a time: the bytes stay nearly in order
        for (int t = 0; t < TILES; ++t) {
            for (int half = 0; half < 2; ++half) {
                // int16 sums of 8 pairs stay below 8 * 2 * 15 * 128 = 30720.
                __m256i pairs[LEVELS];
                for (int l = 0; l < LEVELS; ++l) pairs[l] = _mm256_setzero_si256();
                for (int i = s; i < s + 4; ++i) {
                    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + (i * TILES + t) * 64 + 32 * half));
                    const __m256i a = _mm256_and_si256(v, low), b = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
                    for (int l = 0; l < LEVELS; ++l) {
                        const __m256i x = _mm256_maddubs_epi16(a, _mm256_set1_epi32(four(d.plane[l] + 8 * i)));
                        const __m256i y = _mm256_maddubs_epi16(b, _mm256_set1_epi32(four(d.plane[l] + 8 * i + 4)));
                        pairs[l] = _mm256_add_epi16(pairs[l], _mm256_add_epi16(x, y));
                    }
                }
                for (int l = 0; l < LEVELS; ++l) acc[l][t][half] = _mm256_add_epi32(acc[l][t][half], _mm256_madd_epi16(pairs[l], one));
            }
        }
    }
    for (int t = 0; t < TILES; ++t) {
        for (int half = 0; half < 2; ++half) {
            __m256i r = acc[0][t][half];
            if constexpr (LEVELS == 2) r = _mm256_add_epi32(_mm256_slli_epi32(r, 8), acc[LEVELS - 1][t][half]);
            std::memcpy(reinterpret_cast<char*>(&dot[t]) + 32 * half, &r, 32);
        }
    }
#elif defined(__ARM_FEATURE_DOTPROD)
    for (int t = 0; t < TILES; ++t) {
        int32x4_t acc[LEVELS][4];
        for (int l = 0; l < LEVELS; ++l)
            for (int q = 0; q < 4; ++q) acc[l][q] = vdupq_n_s32(0);
        for (int s = 0; s < COUNT / 8; ++s) {
            const int at = (s * TILES + t) * 64;
            for (int q = 0; q < 4; ++q) {
                const uint8x16_t v = vld1q_u8(reinterpret_cast<const uint8_t*>(w + at + 16 * q));
                const int8x16_t a = vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15))), b = vreinterpretq_s8_u8(vshrq_n_u8(v, 4));
                for (int l = 0; l < LEVELS; ++l) {
                    acc[l][q] = vdotq_s32(acc[l][q], a, vreinterpretq_s8_s32(vdupq_n_s32(four(d.plane[l] + 8 * s))));
                    acc[l][q] = vdotq_s32(acc[l][q], b, vreinterpretq_s8_s32(vdupq_n_s32(four(d.plane[l] + 8 * s + 4))));
                }
            }
        }
        for (int q = 0; q < 4; ++q) {
            int32x4_t r = acc[0][q];
            if constexpr (LEVELS == 2) r = vaddq_s32(vshlq_n_s32(r, 8), acc[LEVELS - 1][q]);
            std::memcpy(reinterpret_cast<char*>(&dot[t]) + 16 * q, &r, 16);
        }
    }
#else
    for (int t = 0; t < TILES; ++t) dot[t] = kb::i32x16{};
    for (int s = 0; s < COUNT / 8; ++s) {
        int32_t x[8];
        for (int j = 0; j < 8; ++j) {
            x[j] = d.plane[0][8 * s + j];
            if constexpr (LEVELS == 2) x[j] = x[j] * 256 + d.plane[LEVELS - 1][8 * s + j];
        }
        for (int t = 0; t < TILES; ++t) {
            const kb::u32x16 v = kb::load_bytes<kb::u32x16>(w + (s * TILES + t) * 64);
            for (int j = 0; j < 4; ++j) {
                dot[t] += __builtin_convertvector((v >> (8 * j)) & 15u, kb::i32x16) * x[j];
                dot[t] += __builtin_convertvector((v >> (8 * j + 4)) & 15u, kb::i32x16) * x[4 + j];
            }
        }
    }
#endif
}

// y[t] of one band: x . w for its columns. `prepare(g)` comes before group g of x is read.
template <class Matrix, int LEVELS, int TILES, class Prepare>
KB_INLINE void multiply_digits(const std::byte* band, const Digits<LEVELS, 128>* x, kb::f32x16 (&y)[TILES], Prepare prepare) {
    for (int t = 0; t < TILES; ++t) y[t] = kb::splat(0.0f);
    for (int g = 0; g < Matrix::kGroups; ++g) {
        const std::byte* block = band + size_t(g) * Matrix::kBlock;
        prepare(g);
        kb::i32x16 dot[TILES];
        dot_tiles<TILES, LEVELS, 128>(block, x[g], dot);
        const float sum = float(x[g].sum), scale = x[g].scale;
        for (int t = 0; t < TILES; ++t) y[t] += (to_f32(dot[t]) - Matrix::zeros(block, t) * sum) * (Matrix::scales(block, t) * scale);
    }
}
