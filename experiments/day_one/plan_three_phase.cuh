// Plan A, as an emitter would write it: three phases per layer, a grid barrier after each.
//   1 norm + q, k, v or gate of a head (+ beta)   2 convolution + state   3 o_proj by columns
// The stage text is that of plan B; views, sinks, shardings and the load order differ.
#pragma once

#include "problem.cuh"

namespace day_one {

constexpr int kConvQ = 0, kConvK = kb::ShortConv<kD>::kPageBytes, kConvV = 2 * kConvK;
enum PhasedStamp { kP1Enter, kP1Normed, kP1Done, kP1Barrier, kP2Done, kP2Barrier, kP3Imaged, kP3Done, kP3Barrier };

template <int N>
__device__ __forceinline__ void load_conv(uint32_t page, const Layer& layer, int which, int channel, int t) {
    using Conv = kb::ShortConv<N>;
    kb::copy_bytes<Conv::kWindowAt>(page, layer.conv_w + (which * kC + channel) * 4, t);
    kb::copy_rows<3, N * 2, kC * 2>(page + Conv::kWindowAt, layer.window[which] + channel, t);
}

__device__ __forceinline__ void phased_produce(const Params& p, Memory& m) {
    const int head = blockIdx.x / kTeam, part = blockIdx.x % kTeam, t = threadIdx.x - kb::kConsumers;
    kb::Producer<decltype(m.ring)> out{m.ring, {p.control, &m.ring.aborted, 100}, t, p.wide, p.narrow};
#pragma unroll 1
    for (int l = 0; l < kLayers; ++l) {
        const Layer& layer = p.layer[l];
        uint32_t page = out.begin();
        kb::copy_bytes<Norm::kPageBytes>(page, layer.norm_w, t);
        if (part == 3)
            kb::copy_bytes<Beta::kPageBytes>(page + Norm::kPageBytes, layer.beta_w + head * kHidden, t);
        out.end();
        const uint8_t* next = layer.pages + static_cast<size_t>(blockIdx.x) * kPhasedBlockBytes;
#pragma unroll 1
        for (int i = 0; i < QkvgShape::kPages; ++i, next += QkvgShape::kPageBytes) {
            page = out.begin();
            kb::copy_bytes<QkvgShape::kPageBytes>(page, next, t);
            out.end();
        }
        page = out.begin();
        load_conv<kD>(page + kConvQ, layer, 0, head * kD, t);
        load_conv<kD>(page + kConvK, layer, 1, head * kD, t);
        load_conv<kDv>(page + kConvV, layer, 2, head * kD + part * kDv, t);
        out.end();
        page = out.begin();
        kb::copy_rows<kD, kDv * 4, kD * 4>(page, layer.s + head * kD * kD + part * kDv, t);
        out.end();
#pragma unroll 1
        for (int i = 0; i < OColumnsShape::kPages; ++i, next += OColumnsShape::kPageBytes) {
            page = out.begin();
            kb::copy_bytes<OColumnsShape::kPageBytes>(page, next, t);
            out.end();
        }
    }
    kb::cp_async_wait<0>();
}

struct PhasedResidual {
    const Params& p;
    uint16_t* resident;
    int layer;
    __device__ __forceinline__ void h8(int octet, float (&h)[8]) const {
        uint4* own = reinterpret_cast<uint4*>(resident) + octet;
        if (layer == 0) {
            *own = __ldcg(reinterpret_cast<const uint4*>(p.token) + octet);
            unpack8(*own, h);
            return;
        }
        float v[8];
        kb::load_octet<1>(p.y + (layer - 1) * kHidden, 0, octet, v);
        unpack8(*own, h);
#pragma unroll
        for (int i = 0; i < 8; ++i) h[i] = kb::round_bf16(h[i] + v[i]);
        *own = pack8(h);
    }
};
struct OwnSink {  // one writer, bf16-valued
    float* target;
    __device__ __forceinline__ void put(int c, float v) const { target[c] = kb::round_bf16(v); }
};
struct GlobalRaw {
    const float* source;
    __device__ __forceinline__ float raw(int c) const { return __ldcg(source + c); }
};
// All four blocks of a head need q and k, so each convolves them; one owner writes the window, to the other copy.
struct PhasedConvSink {
    float* shared;
    uint16_t* target;
    bool owner;
    __device__ __forceinline__ void put(int c, float v) const { shared[c] = v; }
    __device__ __forceinline__ void window(int tap, int c, uint16_t v) const {
        if (owner) target[tap * kC + c] = v;
    }
};
struct OSink {
    float* target;  // 32 o-values
    __device__ __forceinline__ void o(int c, float v) const { target[c] = v; }
};
struct GlobalO {
    const float* source;
    __device__ __forceinline__ void x8(int octet, float (&x)[8]) const {
        kb::load_octet<1>(source, 0, octet, x);
    }
};

__device__ __forceinline__ void phased_consume(const Params& p, Memory& m) {
    const int head = blockIdx.x / kTeam, part = blockIdx.x % kTeam;
    const kb::Team team{static_cast<int>(threadIdx.x)};
    kb::Guard guard{p.control, &m.ring.aborted, 0};
    kb::Consumer<decltype(m.ring)> in{m.ring};
    uint32_t target = __ldcg(&p.control->epoch) * (3 * kLayers * kBlocks);
    const kb::DigitImage<kXGroup> image{m.image};
    const kb::DigitImage<128> o_image{m.image};
    float* mixed = p.qkvg + head * 4 * kD;
#pragma unroll 1
    for (int l = 0; l < kLayers; ++l) {
        const Layer& layer = p.layer[l];
        // phase 1
        guard.phase = 3 * l;
        kb::delay(p.delay_seed, guard.phase);
        kb::stamp(team, p.stamps, l, kLayers, kP1Enter);
        Norm::Regs norm;
        Norm::enter(team, PhasedResidual{p, m.residual, l}, norm, m.norm_scratch);
        const unsigned char* page = in.wait(guard);
        Norm::consume(team, 0, 0, page, norm, NormedRow{image, m.row});
        team.sync();
        kb::stamp(team, p.stamps, l, kLayers, kP1Normed);
        kb::set_quiet(team, m.ring, false);
        Beta::Regs beta;
        if (part == 3) Beta::consume(team, head, 0, page + Norm::kPageBytes, beta, RowView{m.row});
        in.release(team, 1);
        in.next();
        Qkvg::Regs qkvg;
        Qkvg::begin(qkvg);
#pragma unroll 1
        for (int i = 0; i < QkvgShape::kPages; ++i, in.next()) {
            if (i % kb::Team::kSets != team.set()) continue;
            Qkvg::consume(team, 0, i, in.wait(guard), qkvg, image);
            in.release(team, 2);
        }
        Qkvg::finish(team, 0, qkvg, m.scratch, OwnSink{mixed + part * kD});
        if (part == 3) Beta::finish(team, head, beta, m.norm_scratch, OwnSink{p.beta + head});
        kb::stamp(team, p.stamps, l, kLayers, kP1Done);
        kb::grid_barrier(team, m.ring, guard, target += kBlocks, p.quiet & 4);
        kb::set_quiet(team, m.ring, p.quiet & 2);
        kb::stamp(team, p.stamps, l, kLayers, kP1Barrier);
        // phase 2
        guard.phase = 3 * l + 1;
        kb::delay(p.delay_seed, guard.phase);
        page = in.wait(guard);
        kb::ShortConv<kD>::Regs conv_q, conv_k;
        kb::ShortConv<kDv>::Regs conv_v;
        kb::ShortConv<kD>::consume(team, 0, 0, page + kConvQ, conv_q);
        kb::ShortConv<kD>::consume(team, 1, 0, page + kConvK, conv_k);
        kb::ShortConv<kDv>::consume(team, 2, 0, page + kConvV, conv_v);
        in.release(team, 1);
        in.next();
        uint16_t* const* window = layer.window_out;
        const int slice = part * kDv;
        kb::ShortConv<kD>::finish(team, 0, conv_q, GlobalRaw{mixed},
                                  PhasedConvSink{m.mixed[0], window[0] + head * kD, part == 0});
        kb::ShortConv<kD>::finish(team, 1, conv_k, GlobalRaw{mixed + kD},
                                  PhasedConvSink{m.mixed[1], window[1] + head * kD, part == 1});
        kb::ShortConv<kDv>::finish(team, 2, conv_v, GlobalRaw{mixed + 2 * kD + slice},
                                   PhasedConvSink{m.mixed[2] + slice, window[2] + head * kD + slice, true});
        if (team.rank >= 384) m.mixed[3][team.rank - 384] = __ldcg(mixed + team.rank);
        if (team.rank == 256) m.beta = __ldcg(p.beta + head);
        team.sync();
        State::Regs state;
        const HeadView view{m, slice};
        State::consume(team, 0, 0, in.wait(guard), state);
        in.release(team, 1);
        in.next();
        State::finish(team, 0, state, view, m.scratch, OSink{p.o + head * kD + slice});
        kb::stamp(team, p.stamps, l, kLayers, kP2Done);
        kb::grid_barrier(team, m.ring, guard, target += kBlocks, p.quiet & 4);
        kb::set_quiet(team, m.ring, p.quiet & 2);
        kb::stamp(team, p.stamps, l, kLayers, kP2Barrier);
        // phase 3
        guard.phase = 3 * l + 2;
        kb::delay(p.delay_seed, guard.phase);
        OColumns::enter(team, GlobalO{p.o}, o_image);
        team.sync();
        kb::stamp(team, p.stamps, l, kLayers, kP3Imaged);
        State::retire(team, 0, state, StateSink{layer.s + head * kD * kD + slice});
        OColumns::Regs columns;
        OColumns::begin(columns);
#pragma unroll 1
        for (int i = 0; i < OColumnsShape::kPages; ++i, in.next()) {
            if (i % kb::Team::kSets != team.set()) continue;
            OColumns::consume(team, 0, i, in.wait(guard), columns, o_image);
            in.release(team, 2);
        }
        OColumns::finish(team, 0, columns, m.scratch, OwnSink{p.y + l * kHidden + blockIdx.x * kOwnColumns});
        kb::stamp(team, p.stamps, l, kLayers, kP3Done);
        kb::grid_barrier(team, m.ring, guard, target += kBlocks, p.quiet & 4);
        kb::stamp(team, p.stamps, l, kLayers, kP3Barrier);
    }
    if (team.warp() < Norm::kWarps) {
        float h[8];
        PhasedResidual{p, m.residual, kLayers}.h8(team.rank, h);
        if (team.rank % kBlocks == blockIdx.x) store8(p.hidden + team.rank * 8, h);
    }
    kb::leave(team, p.control);
}

__global__ void __launch_bounds__(kb::kThreads, 1) three_phase_plan(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) unsigned char raw[];
    Memory& m = *reinterpret_cast<Memory*>(raw);
    kb::ring_init(m.ring);
    if (threadIdx.x >= kb::kConsumers) phased_produce(p, m);
    else phased_consume(p, m);
}

}  // namespace day_one
