// Integer digits for int4 weights: activations become one or two signed bytes per element with one scale per group, and
// products with the unsigned nibbles are summed in int32, exactly. All instruction sets give the same integers.
//
// Tile: 16 columns (lanes) x 8 rows = 64 bytes; byte j of a lane holds row j in its low and row 4 + j in its high nibble,
// so one load gives both operands of a 4-way dot product. Block: a group of 128 rows of TILES tiles: for every 8 rows the
// tiles side by side, then bf16 scales [16 * TILES], u8 zeros [16 * TILES], zeros up to a whole line.

constexpr int tiles_of(int columns) { return columns % 64 == 0 ? 4 : columns % 32 == 0 ? 2 : 1; }

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

KB_INLINE kb::i32x16 widen_u8(const std::byte* p) {
    using u8x16 = uint8_t __attribute__((vector_size(16)));
    return __builtin_convertvector(kb::load_bytes<u8x16>(p), kb::i32x16);
}
KB_INLINE kb::f32x16 to_f32(kb::i32x16 v) { return __builtin_convertvector(v, kb::f32x16); }

// ---- packed matrices ----

// N columns x K rows as N / (16 * TILES) bands; a band is one page: its K / 128 blocks in order.
template <int K, int N, int TILES>
struct Bands {
    static_assert(K % 128 == 0 && N % (16 * TILES) == 0, "W4A16 units come in 128 rows and 16 columns");
    static constexpr int kGroups = K / 128, kColumns = 16 * TILES, kBands = N / kColumns;
    static constexpr size_t kCodes = size_t(1024) * TILES;
    static constexpr size_t kBlock = (kCodes + size_t(48) * TILES + 63) / 64 * 64;
    static constexpr size_t kBand = kBlock * kGroups;

    // Column `n` of the packed order is `where(n).column` of segment `where(n).segment`.
    struct Place {
        int segment, column;
    };
    template <class Where>
    static const char* pack(const kb::Unit& u, std::byte* dst, Where where) {
        std::memset(dst, 0, kBand * kBands);
        for (int n = 0; n < N; n += 16) {  // a tile never straddles two segments
            const Place at = where(n);
            const kb::W4 w = u.w4(at.segment);
            for (int g = 0; g < kGroups; ++g) {
                std::byte* block = dst + size_t(n / kColumns) * kBand + size_t(g) * kBlock;
                pack_tile(w, g * 128, at.column, block, n % kColumns);
            }
        }
        return nullptr;
    }
    template <class Where>
    static void unpack(const std::byte* unit, float* out, Where where, int segment_columns) {
        for (int n = 0; n < N; ++n) {
            const Place at = where(n);
            float* column = out + at.segment * segment_columns + at.column;
            for (int k = 0; k < K; ++k) column[size_t(k) * N] = value(unit, k, n);
        }
    }
    static float value(const std::byte* unit, int k, int n) {
        const std::byte* block = unit + size_t(n / kColumns) * kBand + size_t(k / 128) * kBlock;
        const int c = n % kColumns, r = k % 128, tile = r / 8 * TILES + c / 16;
        const int pair = std::to_integer<int>(block[tile * 64 + c % 16 * 4 + r % 4]);
        kb::bf16 scale;
        std::memcpy(&scale, block + kCodes + 2 * c, 2);
        const int zero = std::to_integer<int>(block[kCodes + 2 * kColumns + c]);
        return float((r % 8 < 4 ? pair & 15 : pair >> 4) - zero) * kb::to_float(scale);
    }
    // y[t] of one band: x . w for its columns. `prepare(g)` comes before group g of x is read.
    template <int LEVELS, class Prepare>
    static KB_INLINE void multiply(const std::byte* band, const Digits<LEVELS, 128>* x, kb::f32x16 (&y)[TILES], Prepare prepare) {
        for (int t = 0; t < TILES; ++t) y[t] = kb::splat(0.0f);
        for (int g = 0; g < kGroups; ++g) {
            const std::byte* block = band + size_t(g) * kBlock;
            prepare(g);
            kb::i32x16 dot[TILES];
            dot_tiles<TILES, LEVELS, 128>(block, x[g], dot);
            const float sum = float(x[g].sum), scale = x[g].scale;
            for (int t = 0; t < TILES; ++t) {
                const kb::f32x16 zero = to_f32(widen_u8(block + kCodes + 2 * kColumns + 16 * t));
                const kb::f32x16 w = kb::load16(reinterpret_cast<const kb::bf16*>(block + kCodes + 32 * t));
                y[t] += (to_f32(dot[t]) - zero * sum) * (w * scale);
            }
        }
    }

private:
    static void pack_tile(const kb::W4& w, int k, int column, std::byte* block, int c) {
        for (int s = 0; s < 16; ++s) {
            std::byte* tile = block + size_t(s * TILES + c / 16) * 64;
            const uint8_t* q = w.q + size_t((w.k0 + k) / 2 + 4 * s) * w.cols + w.n0 + column;
            for (int lane = 0; lane < 16; ++lane) {
                // four bytes of two rows each: (0,1) (2,3) (4,5) (6,7)
                const int a = q[lane], b = q[w.cols + lane], e = q[2 * size_t(w.cols) + lane], f = q[3 * size_t(w.cols) + lane];
                tile[4 * lane + 0] = std::byte((a & 15) | (e & 15) << 4);
                tile[4 * lane + 1] = std::byte(a >> 4 | (e & 240));
                tile[4 * lane + 2] = std::byte((b & 15) | (f & 15) << 4);
                tile[4 * lane + 3] = std::byte(b >> 4 | (f & 240));
            }
        }
        for (int lane = 0; lane < 16; ++lane) {
            const kb::bf16 scale = kb::to_bf16(w.scale(k, column + lane));
            std::memcpy(block + kCodes + 2 * (c + lane), &scale, 2);
            block[kCodes + 2 * kColumns + c + lane] = std::byte(int(w.zero(k, column + lane)));
        }
    }
};
