// The yardstick of plan B: its load order (same pages, same ring, same cap), a null consume, the same bytes
// written, and as many all-to-alls. Nothing of norm, GEMV, hop, convolution or state is computed.
#pragma once

#include "plan_fused.cuh"

namespace day_one {

enum class Sync { kNone, kBarrier, kExchange };

// kNone: pages only. kBarrier: a release/acquire grid barrier per layer. kExchange: 2304 adds of 0.0 per block to
// one of four replicas, zeroing, barrier, and the sums read back by 288 threads: the all-to-all of plan B.
// Consumer warps wait for each page and release it; of the S page they copy 16 KB back to where it came from.
template <Sync Mode>
__global__ void __launch_bounds__(kb::kThreads, 1) skeleton(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) unsigned char raw[];
    Memory& m = *reinterpret_cast<Memory*>(raw);
    kb::ring_init(m.ring);
    if (threadIdx.x >= kb::kConsumers) {
        fused_produce(p, m);
        return;
    }
    const int head = blockIdx.x / kTeam, part = blockIdx.x % kTeam;
    const kb::Team team{static_cast<int>(threadIdx.x)};
    kb::Guard guard{p.control, &m.ring.aborted, 0};
    kb::Consumer<decltype(m.ring)> in{m.ring};
    const uint32_t first = __ldcg(&p.control->epoch) * kLayers;
    float kept = 0.0f;
#pragma unroll 1
    for (int l = 0; l < kLayers; ++l) {
        const uint32_t exchange = first + l;
        guard.phase = l;
#pragma unroll 1
        for (int i = 0; i < kFusedPages; ++i, in.next()) {
            const unsigned char* page = in.wait(guard);
            if (i == 1 + QkvgShape::kPages) {
                float* s = p.layer[l].s + head * kD * kD + part * kDv;
#pragma unroll
                for (int k = team.warp(); k < kD; k += kb::kConsumerWarps)
                    s[k * kD + team.lane()] = reinterpret_cast<const float*>(page)[k * kDv + team.lane()];
            }
            in.release(team, 1);
        }
        if (Mode == Sync::kExchange) {
            kb::zero_share(team, p.sums, kHidden, exchange, kBlocks);
            float* sums = kb::replica(p.sums, kHidden, exchange, part);
#pragma unroll
            for (int c = 0; c < 9; ++c)
                if (c % 2 == team.set()) kb::red_add(sums + c * 256 + team.set_rank(), 0.0f);
        }
        if (Mode != Sync::kNone) kb::grid_barrier(team, m.ring, guard, (exchange + 1) * kBlocks, p.quiet & 4);
        if (Mode == Sync::kExchange && team.rank < kHidden / 8) {
            float y[8];
            kb::sum_replicas(p.sums, kHidden, exchange, team.rank, y);
#pragma unroll
            for (int i = 0; i < 8; ++i) kept += y[i];
        }
        if (Mode == Sync::kExchange) team.sync();
        kb::set_quiet(team, m.ring, false);
    }
    if (kept != 0.0f) p.hidden[team.rank] = kept;
    kb::leave(team, p.control);
}

}  // namespace day_one
