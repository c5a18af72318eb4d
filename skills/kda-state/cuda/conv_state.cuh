// KDA: beta logit, short causal convolution, and the gated delta-rule state update of one head's dv slice.
// All pages hold canonical layouts, so pack and unpack are the identity here (the load order gathers slices).
#pragma once

#include "../../../sandbox/stage_runtime/cuda/runtime.cuh"

namespace kb {

// One bf16 row times the normed row.
//   page bf16 [K];  in row(pair) -> two bf16 packed in 32 bits;  out put(0, logit)
template <int K>
struct BetaDot {
    static constexpr int kPageBytes = K * 2, kScratchBytes = Team::kWarps * 4;
    struct Regs {
        float sum;
    };
    template <class In>
    static __device__ __forceinline__ void consume(const Team& team, int, int, const unsigned char* page, Regs& r,
                                                   const In& in) {
        const uint32_t* w = reinterpret_cast<const uint32_t*>(page);
        r.sum = 0.0f;
#pragma unroll
        for (int i = 0; i < (K / 2 + Team::kSize - 1) / Team::kSize; ++i) {
            const int pair = team.rank + i * Team::kSize;
            if (pair < K / 2) {
                const uint32_t a = w[pair], b = in.row(pair);
                r.sum = fmaf(__uint_as_float(a << 16), __uint_as_float(b << 16), r.sum);
                r.sum = fmaf(__uint_as_float(a & 0xffff0000u), __uint_as_float(b & 0xffff0000u), r.sum);
            }
        }
#pragma unroll
        for (int d = 16; d; d >>= 1) r.sum += __shfl_xor_sync(~0u, r.sum, d);
    }
    template <class Out>
    static __device__ __forceinline__ void finish(const Team& team, int, Regs& r, float* scratch, const Out& out) {
        if (team.lane() == 0) scratch[team.warp()] = r.sum;
        team.sync();
        if (team.rank == 0) {
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < Team::kWarps; ++w) sum += scratch[w];
            out.put(0, sum);
        }
    }
};

// Depthwise convolution (kernel 4) and SiLU over N channels; the new value enters, the window shifts by one.
//   page  bf16 weights [N][4], then bf16 window [3][N], oldest first
//   in    raw(channel);  out put(channel, value), window(tap, channel, value)
template <int N>
struct ShortConv {
    static constexpr int kWindowAt = N * 8, kPageBytes = N * 14;
    struct Regs {
        uint2 weights;
        uint16_t window[3];
    };
    static __device__ __forceinline__ void consume(const Team& team, int, int, const unsigned char* page, Regs& r) {
        if (team.rank >= N) return;
        r.weights = reinterpret_cast<const uint2*>(page)[team.rank];
#pragma unroll
        for (int i = 0; i < 3; ++i)
            r.window[i] = reinterpret_cast<const uint16_t*>(page + kWindowAt)[i * N + team.rank];
    }
    template <class In, class Out>
    static __device__ __forceinline__ void finish(const Team& team, int, Regs& r, const In& in, const Out& out) {
        if (team.rank >= N) return;
        const float fresh = in.raw(team.rank);
        const float w[4] = {__uint_as_float(r.weights.x << 16), __uint_as_float(r.weights.x & 0xffff0000u),
                            __uint_as_float(r.weights.y << 16), __uint_as_float(r.weights.y & 0xffff0000u)};
        float sum = fresh * w[3];
#pragma unroll
        for (int i = 0; i < 3; ++i) sum = fmaf(__uint_as_float(static_cast<uint32_t>(r.window[i]) << 16), w[i], sum);
        out.put(team.rank, round_bf16(__fdividef(sum, 1.0f + __expf(-sum))));
        out.window(0, team.rank, r.window[1]);
        out.window(1, team.rank, r.window[2]);
        out.window(2, team.rank, __bfloat16_as_ushort(__float2bfloat16_rn(fresh)));
    }
};

// S <- S exp(g)[k]; pred = S'k; S <- S + beta k (outer) (v - pred); o = S'q, for all 128 k and Dv columns of v.
// One pass over S: o = (decayed S)'q + (k.q) * delta. exp(-softplus(x)) is computed as 1 / (1 + exp(x)).
//   page  fp32 [128][Dv] slice of S
//   in    q(k), k(k), gate(k), v(column), beta()   after convolution, bf16-valued
//   out   o(column, value rounded to bf16) in finish; state(k, column, value) in retire, which nothing in this
//         launch waits for: the driver may call it after the next barrier, out of the way of the release
template <int Dv>
struct KdaState {
    static_assert(Dv == 32, "a lane per column");
    static constexpr int kRows = 128 / Team::kWarps, kPageBytes = 128 * Dv * 4;
    static constexpr int kScratchBytes = Team::kWarps * (2 * Dv + 1) * 4;
    struct Regs {
        float s[kRows];
    };
    static __device__ __forceinline__ void consume(const Team& team, int, int, const unsigned char* page, Regs& r) {
        const float* s = reinterpret_cast<const float*>(page) + team.warp() * kRows * Dv + team.lane();
#pragma unroll
        for (int i = 0; i < kRows; ++i) r.s[i] = s[i * Dv];
    }
    template <class In, class Out>
    static __device__ __forceinline__ void finish(const Team& team, int, Regs& r, const In& in, float* scratch,
                                                  const Out& out) {
        const int row0 = team.warp() * kRows, lane = team.lane();
        const float decay = __fdividef(1.0f, 1.0f + __expf(in.gate(row0 + lane % kRows)));
        float pred = 0.0f, read = 0.0f, qk = 0.0f;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const float k = in.k(row0 + i), q = in.q(row0 + i) * 0.08838834764831845f;
            r.s[i] *= __shfl_sync(~0u, decay, i);
            pred = fmaf(r.s[i], k, pred), read = fmaf(r.s[i], q, read), qk = fmaf(q, k, qk);
        }
        scratch[team.warp() * 2 * Dv + lane] = pred;
        scratch[team.warp() * 2 * Dv + Dv + lane] = read;
        if (lane == 0) scratch[Team::kWarps * 2 * Dv + team.warp()] = qk;
        team.sync();
        pred = 0.0f;
#pragma unroll
        for (int w = 0; w < Team::kWarps; ++w) pred += scratch[w * 2 * Dv + lane];
        const float delta = __fdividef(in.v(lane) - pred, 1.0f + __expf(-in.beta()));
        if (team.warp() == 0) {
            read = qk = 0.0f;
#pragma unroll
            for (int w = 0; w < Team::kWarps; ++w)
                read += scratch[w * 2 * Dv + Dv + lane], qk += scratch[Team::kWarps * 2 * Dv + w];
            out.o(lane, round_bf16(fmaf(qk, delta, read)));
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) r.s[i] = fmaf(in.k(row0 + i), delta, r.s[i]);
    }
    template <class Out>
    static __device__ __forceinline__ void retire(const Team& team, int, const Regs& r, const Out& out) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) out.state(team.warp() * kRows + i, team.lane(), r.s[i]);
    }
};

}  // namespace kb
