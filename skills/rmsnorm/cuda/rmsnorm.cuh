// RMSNorm of one row, replicated in every block that needs it.
//   in  (residual view)  h8(octet, float[8])      eight consecutive residual values, bf16-valued
//   page                 norm weight, bf16 [Hidden], canonical layout
//   out (row sink)       x8(octet, float[8])      eight normed values, bf16-valued; called by whole warps
// A thread owns eight consecutive columns, so an octet never leaves its thread between enter and consume.
#pragma once

#include "../../../sandbox/stage_runtime/cuda/runtime.cuh"

namespace kb {

template <int Hidden>
struct RmsNorm {
    static constexpr int kOctets = Hidden / 8, kWarps = (kOctets + 31) / 32;
    static constexpr int kPageBytes = Hidden * 2, kScratchBytes = kWarps * 4;
    static_assert(Hidden % 256 == 0, "an octet per lane, whole warps");
    static_assert(kWarps <= Team::kWarps, "one round only: a wider row needs two octets per thread");

    struct Regs {
        float h[8];
        float rstd;
    };

    template <class In>
    static __device__ __forceinline__ void enter(const Team& team, const In& in, Regs& r, float* scratch) {
        if (team.warp() < kWarps) {
            in.h8(team.rank, r.h);
            float square = 0.0f;
#pragma unroll
            for (int i = 0; i < 8; ++i) square = fmaf(r.h[i], r.h[i], square);
#pragma unroll
            for (int d = 16; d; d >>= 1) square += __shfl_xor_sync(~0u, square, d);
            if (team.lane() == 0) scratch[team.warp()] = square;
        }
        team.sync();
        float total = 0.0f;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) total += scratch[w];
        r.rstd = rsqrtf(total * (1.0f / Hidden) + 1e-6f);
    }

    template <class Out>
    static __device__ __forceinline__ void consume(const Team& team, int, int, const unsigned char* page, Regs& r,
                                                   const Out& out) {
        if (team.warp() >= kWarps) return;
        const uint4 w = reinterpret_cast<const uint4*>(page)[team.rank];
        const uint32_t words[4] = {w.x, w.y, w.z, w.w};
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t bits = (i & 1) ? (words[i / 2] & 0xffff0000u) : (words[i / 2] << 16);
            x[i] = round_bf16(r.h[i] * r.rstd * __uint_as_float(bits));
        }
        out.x8(team.rank, x);
    }
};

}  // namespace kb
