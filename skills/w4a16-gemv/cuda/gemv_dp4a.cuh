// W4A16 matrix-vector product by dp4a on two int8 levels of the activations (about 2e-5 relative RMS).
// One source for every sharding; a Shape says how an item lies on pages and pages on threads.
//   in  (image view)  group(g): address of one group of the digit image; enter() builds it from x8(octet, float[8])
//   page              [column of the thread][chunk][strip] 16 B of nibbles, then bf16 scales and u8 zero points,
//                     both [128-group of the page][column]
//   out (column sink) put(column of the item, fp32 sum); the sink rounds, adds or publishes
#pragma once

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "../../../sandbox/stage_runtime/cuda/runtime.cuh"

namespace kb {

__device__ __forceinline__ uint32_t bytes4(const uint32_t* v) {  // the low bytes of four words
    return __byte_perm(__byte_perm(v[0], v[1], 0x0040), __byte_perm(v[2], v[3], 0x0040), 0x5410);
}

// x ~ scale * (254 hi + lo); a group is hi[Group], lo[Group], {scale, sum of (254 hi + lo)}, 8 bytes of padding.
// The padding shifts successive groups by four banks, so lanes of one warp may read different groups.
template <int Group>
struct DigitImage {
    static constexpr int kStride = 2 * Group + 16, kLanes = Group / 8;
    unsigned char* base;

    // Rounding by adding 1.5 * 2^23: the integer lands in the low mantissa bits, no conversion instructions.
    // |q| <= 127 and |q - a| <= 0.5, so neither digit needs a clamp; the digit sums are exact in fp32.
    static constexpr float kMagic = 12582912.0f;

    __device__ __forceinline__ const unsigned char* group(int g) const { return base + g * kStride; }

    static __device__ __forceinline__ void meta(unsigned char* group, float scale, float sum) {
        *reinterpret_cast<uint2*>(group + 2 * Group) =
            make_uint2(__float_as_uint(scale * (1.0f / 254.0f)), __float2int_rn(sum));
    }

    // One value per lane of one warp: a group of 32.
    __device__ __forceinline__ void put1(int lane, float x) const {
        static_assert(Group == 32);
        float top = fabsf(x);
#pragma unroll
        for (int d = 16; d; d >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
        const float scale = fmaxf(top, 1e-30f) * (1.0f / 127.0f);
        const float q = __fmul_rn(x, __frcp_rn(scale)), s = __fadd_rn(q, kMagic), a = s - kMagic;
        const float t = fmaf(__fsub_rn(q, a), 254.0f, kMagic);
        float sum = fmaf(254.0f, a, t - kMagic);
#pragma unroll
        for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
        base[lane] = static_cast<unsigned char>(__float_as_uint(s));
        base[Group + lane] = static_cast<unsigned char>(__float_as_uint(t));
        if (lane == 0) meta(base, scale, sum);
    }

    // Called by whole warps; kLanes neighbouring lanes hold one group. `live` is false for lanes past the end.
    __device__ __forceinline__ void put8(int octet, const float (&x)[8], bool live) const {
        float top = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) top = fmaxf(top, fabsf(x[i]));
#pragma unroll
        for (int d = kLanes / 2; d; d >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
        const float scale = fmaxf(top, 1e-30f) * (1.0f / 127.0f), inverse = __frcp_rn(scale);
        uint32_t hi[8], lo[8];
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float q = __fmul_rn(x[i], inverse), s = __fadd_rn(q, kMagic), a = s - kMagic;
            const float t = fmaf(__fsub_rn(q, a), 254.0f, kMagic);
            sum += fmaf(254.0f, a, t - kMagic);
            hi[i] = __float_as_uint(s), lo[i] = __float_as_uint(t);
        }
#pragma unroll
        for (int d = kLanes / 2; d; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
        if (!live) return;
        const int g = octet / kLanes, k = (octet % kLanes) * 8;
        unsigned char* p = base + g * kStride;
        *reinterpret_cast<uint2*>(p + k) = make_uint2(bytes4(hi), bytes4(hi + 4));
        *reinterpret_cast<uint2*>(p + Group + k) = make_uint2(bytes4(lo), bytes4(lo + 4));
        if (k == 0) meta(p, scale, sum);
    }
};

// Cols columns per item, ColsPerThread of them in a thread, Group k per digit group (it divides the weights' 128),
// GroupsPerPage groups and Pages pages along k, Sets sets of warps sharing the pages of one item.
template <int Cols, int ColsPerThread, int Group, int GroupsPerPage, int Pages, int Sets>
struct GemvShape {
    static constexpr int kCols = Cols, kCpt = ColsPerThread, kGroup = Group, kGroups = GroupsPerPage;
    static constexpr int kPages = Pages, kSets = Sets;
    static constexpr int kLaneCols = Cols / ColsPerThread, kStrips = kLaneCols * GroupsPerPage;
    static constexpr int kChunks = Group / 32, kDepth = Pages * GroupsPerPage * Group;
    static constexpr int kPageDepth = GroupsPerPage * Group, kScales = (kPageDepth + 127) / 128 * Cols;
    static constexpr int kScaleAt = kStrips * kCpt * kChunks * 16, kZeroAt = kScaleAt + kScales * 2;
    static constexpr int kPageBytes = (kZeroAt + kScales + 15) / 16 * 16;
    static __host__ __device__ constexpr int scale_index(int strip, int c) {
        return strip / kLaneCols * Group / 128 * Cols + c * kLaneCols + strip % kLaneCols;
    }
    static constexpr int kPartials = GroupsPerPage * Sets;
    static constexpr int kScratchBytes = kPartials == 1 ? 0 : kPartials * Cols * 4;
    static constexpr int kImageBytes = kDepth / Group * DigitImage<Group>::kStride;
    static_assert(Cols % ColsPerThread == 0 && kStrips <= Team::kSetSize && 128 % Group == 0);
    static_assert(kPageDepth % 128 == 0 || 128 % kPageDepth == 0, "a page ends where a weight group ends, or inside");
};

__device__ __forceinline__ int dp4a_us(uint32_t a, uint32_t b, int c) {  // unsigned nibbles, signed digits
    int d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

template <class S>
struct GemvDp4a {
    struct Regs {
        float sum[S::kCpt];
    };

    // Builds the digit image of all kDepth inputs; the driver places a team barrier after it.
    template <class In, class Image>
    static __device__ __forceinline__ void enter(const Team& team, const In& in, const Image& image) {
        constexpr int kOctets = S::kDepth / 8, kWarps = (kOctets + 31) / 32;
        static_assert(kWarps <= Team::kWarps);
        if (team.warp() >= kWarps) return;
        float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        const bool live = kOctets % 32 == 0 || team.rank < kOctets;
        if (live) in.x8(team.rank, x);
        image.put8(team.rank, x, live);
    }

    static __device__ __forceinline__ void begin(Regs& r) {
#pragma unroll
        for (int c = 0; c < S::kCpt; ++c) r.sum[c] = 0.0f;
    }

    // One set of warps, one page: a thread owns kCpt columns x one group of k, so each activation it loads serves kCpt.
    template <class Image>
    static __device__ __forceinline__ void consume(const Team& team, int, int page_index, const unsigned char* page,
                                                   Regs& r, const Image& image) {
        const int t = team.set_rank();
        if (S::kStrips < Team::kSetSize && t >= S::kStrips) return;
        const unsigned char* g = image.group(page_index * S::kGroups + t / S::kLaneCols);
        const uint4* weights = reinterpret_cast<const uint4*>(page) + t;
        const uint4* hi = reinterpret_cast<const uint4*>(g);
        const uint4* lo = reinterpret_cast<const uint4*>(g + S::kGroup);
        const uint2 meta = *reinterpret_cast<const uint2*>(g + 2 * S::kGroup);
        int hi_low[S::kCpt] = {}, hi_high[S::kCpt] = {}, lo_low[S::kCpt] = {}, lo_high[S::kCpt] = {};
#pragma unroll
        for (int i = 0; i < S::kChunks; ++i) {
            const uint4 a0 = hi[2 * i], a1 = hi[2 * i + 1], b0 = lo[2 * i], b1 = lo[2 * i + 1];
            const uint32_t a[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};
            const uint32_t b[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};
#pragma unroll
            for (int c = 0; c < S::kCpt; ++c) {
                const uint4 w4 = weights[(c * S::kChunks + i) * S::kStrips];
                const uint32_t w[4] = {w4.x, w4.y, w4.z, w4.w};
                // High nibbles stay where they are and count 16 times: no shift in the loop.
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const uint32_t low = w[j] & 0x0f0f0f0fu, high = w[j] & 0xf0f0f0f0u;
                    hi_low[c] = dp4a_us(low, a[2 * j], hi_low[c]), hi_high[c] = dp4a_us(high, a[2 * j + 1], hi_high[c]);
                    lo_low[c] = dp4a_us(low, b[2 * j], lo_low[c]), lo_high[c] = dp4a_us(high, b[2 * j + 1], lo_high[c]);
                }
            }
        }
#pragma unroll
        for (int c = 0; c < S::kCpt; ++c) {
            const int dot = 254 * (hi_low[c] + (hi_high[c] >> 4)) + lo_low[c] + (lo_high[c] >> 4);
            const int at = S::scale_index(t, c);
            const uint32_t scale = reinterpret_cast<const uint16_t*>(page + S::kScaleAt)[at];
            const int zero = page[S::kZeroAt + at];
            r.sum[c] = fmaf(static_cast<float>(dot - zero * static_cast<int>(meta.y)),
                            __uint_as_float(scale << 16) * __uint_as_float(meta.x), r.sum[c]);
        }
    }

    template <class Out>
    static __device__ __forceinline__ void finish(const Team& team, int, Regs& r, float* scratch, const Out& out) {
        const int t = team.set_rank();
        if constexpr (S::kPartials == 1) {
#pragma unroll
            for (int c = 0; c < S::kCpt; ++c) out.put(c * S::kLaneCols + t, r.sum[c]);
        } else {
            static_assert(S::kSets == Team::kSets);
            if (t < S::kStrips)
#pragma unroll
                for (int c = 0; c < S::kCpt; ++c)
                    scratch[(team.set() * S::kGroups + t / S::kLaneCols) * S::kCols + c * S::kLaneCols +
                            t % S::kLaneCols] = r.sum[c];
            team.sync();
            if (team.rank < S::kCols) {
                float sum = 0.0f;
#pragma unroll
                for (int p = 0; p < S::kPartials; ++p) sum += scratch[p * S::kCols + team.rank];
                out.put(team.rank, sum);
            }
        }
    }
};

// ---------------------------------------------------------------- host: canonical tensors <-> pages

struct QuantLinear {  // w_q [K/2, N], scales and zeros bf16 [K/128, N]
    int k = 0, n = 0;
    uint8_t* w_q = nullptr;
    uint16_t* scales = nullptr;
    uint16_t* zeros = nullptr;
};

inline float bf16_to_float(uint16_t v) {
    const uint32_t bits = static_cast<uint32_t>(v) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

// Nibble position of k inside a 16-byte chunk of 32 k: byte b of word j holds k = 8j+b low and 8j+4+b high.
inline int nibble_of(int k) { return (k / 8) * 8 + (k % 4) * 2 + (k % 8) / 4; }

// Calls f(column, first k, strip, column of the thread) for each (strip, column of the thread) of the page.
template <class S, class F>
void for_each_strip(int column0, int k0, F f) {
    for (int t = 0; t < S::kStrips; ++t)
        for (int c = 0; c < S::kCpt; ++c)
            f(column0 + c * S::kLaneCols + t % S::kLaneCols, k0 + t / S::kLaneCols * S::kGroup, t, c);
}

// Writes one page. Throws std::invalid_argument when a zero point is not an integer in 0..15.
template <class S>
void pack_page(const QuantLinear& w, int column0, int k0, uint8_t* page) {
    std::memset(page, 0, S::kPageBytes);
    for_each_strip<S>(column0, k0, [&](int column, int k, int t, int c) {
        for (int i = 0; i < S::kGroup; ++i) {
            const uint8_t byte = w.w_q[static_cast<size_t>((k + i) / 2) * w.n + column];
            const int q = ((k + i) & 1) ? byte >> 4 : byte & 15, at = nibble_of(i % 32);
            page[((c * S::kChunks + i / 32) * S::kStrips + t) * 16 + at / 2] |= q << (4 * (at % 2));
        }
        const size_t g = static_cast<size_t>(k / 128) * w.n + column;
        const float zero = bf16_to_float(w.zeros[g]);
        if (!(zero >= 0.0f && zero <= 15.0f) || zero != std::floor(zero))
            throw std::invalid_argument("zero point is not an integer in 0..15: use a stage with real zero points");
        std::memcpy(page + S::kScaleAt + S::scale_index(t, c) * 2, &w.scales[g], 2);
        page[S::kZeroAt + S::scale_index(t, c)] = static_cast<uint8_t>(zero);
    });
}

// The inverse, into zeroed canonical buffers.
template <class S>
void unpack_page(const QuantLinear& w, int column0, int k0, const uint8_t* page) {
    for_each_strip<S>(column0, k0, [&](int column, int k, int t, int c) {
        for (int i = 0; i < S::kGroup; ++i) {
            const int at = nibble_of(i % 32);
            const int q = page[((c * S::kChunks + i / 32) * S::kStrips + t) * 16 + at / 2] >> (4 * (at % 2)) & 15;
            w.w_q[static_cast<size_t>((k + i) / 2) * w.n + column] |= ((k + i) & 1) ? q << 4 : q;
        }
        const size_t g = static_cast<size_t>(k / 128) * w.n + column;
        std::memcpy(&w.scales[g], page + S::kScaleAt + S::scale_index(t, c) * 2, 2);
        const float zero = page[S::kZeroAt + S::scale_index(t, c)];
        uint32_t bits;
        std::memcpy(&bits, &zero, 4);
        w.zeros[g] = static_cast<uint16_t>(bits >> 16);  // integers up to 15 are exact in bf16
    });
}

}  // namespace kb
