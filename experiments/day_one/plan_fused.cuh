// Plan B, as an emitter would write it: head teams of four blocks, one all-to-all per layer.
// Block (head, part) computes part = q, k, v or gate of its head, publishes it to the team by tagged words,
// updates 32 dv columns of the state, and adds its 32 o-values x 2304 columns of o_proj to the replicas.
#pragma once

#include "problem.cuh"

namespace day_one {

constexpr int kFusedPages = 1 + QkvgShape::kPages + 1 + kORowItems;
enum FusedStamp { kEntered, kSummed, kNormed, kProjected, kPublished, kCollected, kStated, kAdded, kExchanged };

// Load order: aux (norm weight; conv weights and windows, or the beta row), 9 projection pages, S, 3 o_proj pages.
__device__ __forceinline__ void fused_produce(const Params& p, Memory& m) {
    const int head = blockIdx.x / kTeam, part = blockIdx.x % kTeam, t = threadIdx.x - kb::kConsumers;
    kb::Producer<decltype(m.ring)> out{m.ring, {p.control, &m.ring.aborted, 100}, t, p.wide, p.narrow};
#pragma unroll 1
    for (int l = 0; l < kLayers; ++l) {
        const Layer& layer = p.layer[l];
        uint32_t page = out.begin();
        kb::copy_bytes<Norm::kPageBytes>(page, layer.norm_w, t);
        if (part < 3) {
            using Conv = kb::ShortConv<kD>;
            const uint32_t at = page + Norm::kPageBytes;
            kb::copy_bytes<Conv::kWindowAt>(at, layer.conv_w + (part * kC + head * kD) * 4, t);
            kb::copy_rows<3, kD * 2, kC * 2>(at + Conv::kWindowAt, layer.window[part] + head * kD, t);
        } else {
            kb::copy_bytes<Beta::kPageBytes>(page + Norm::kPageBytes, layer.beta_w + head * kHidden, t);
        }
        out.end();
        const uint8_t* next = layer.pages + static_cast<size_t>(blockIdx.x) * kFusedBlockBytes;
#pragma unroll 1
        for (int i = 0; i < QkvgShape::kPages; ++i, next += QkvgShape::kPageBytes) {
            page = out.begin();
            kb::copy_bytes<QkvgShape::kPageBytes>(page, next, t);
            out.end();
        }
        page = out.begin();
        kb::copy_rows<kD, kDv * 4, kD * 4>(page, layer.s + head * kD * kD + part * kDv, t);
        out.end();
#pragma unroll 1
        for (int i = 0; i < kORowItems; ++i, next += ORowsShape::kPageBytes) {
            page = out.begin();
            kb::copy_bytes<ORowsShape::kPageBytes>(page, next, t);
            out.end();
        }
    }
    kb::cp_async_wait<0>();
}

// Residual view: every block holds h; after an exchange it adds the summed o_proj output, rounded to bf16.
struct FusedResidual {
    const Params& p;
    uint16_t* resident;
    int layer;
    uint32_t exchange;  // the coming one
    __device__ __forceinline__ void h8(int octet, float (&h)[8]) const {
        uint4* own = reinterpret_cast<uint4*>(resident) + octet;
        if (layer == 0) {
            *own = __ldcg(reinterpret_cast<const uint4*>(p.token) + octet);
            unpack8(*own, h);
            return;
        }
        float y[8];
        kb::sum_replicas(p.sums, kHidden, exchange - 1, octet, y);
        unpack8(*own, h);
#pragma unroll
        for (int i = 0; i < 8; ++i) y[i] = kb::round_bf16(y[i]), h[i] = kb::round_bf16(h[i] + y[i]);
        *own = pack8(h);
        if (octet % kBlocks == blockIdx.x) store8(p.y + (layer - 1) * kHidden + octet * 8, y);
    }
};
// The gate needs no convolution and goes out at once; q, k and v stay in the block until it is done.
struct FusedQkvgSink {
    float* raw;
    uint64_t* mail;  // this part's 128 words
    bool tagged;
    uint32_t tag;
    __device__ __forceinline__ void put(int c, float v) const {
        v = kb::round_bf16(v);
        if (tagged) kb::publish(mail + c, v, tag);
        else raw[c] = v;
    }
};
struct FusedConvSink {
    uint64_t* mail;
    uint16_t* target;  // [3, C] at this block's channels; this block is their only reader, so in place
    uint32_t tag;
    __device__ __forceinline__ void put(int c, float v) const { kb::publish(mail + c, v, tag); }
    __device__ __forceinline__ void window(int tap, int c, uint16_t v) const { target[tap * kC + c] = v; }
};
struct TaggedBetaSink {
    uint64_t* word;
    uint32_t tag;
    __device__ __forceinline__ void put(int, float v) const { kb::publish(word, kb::round_bf16(v), tag); }
};
struct ImageSink {  // the state's output edge carries o_proj's input format: one warp, one value per lane
    kb::DigitImage<kDv> image;
    __device__ __forceinline__ void o(int c, float v) const { image.put1(c, v); }
};
struct AddSink {  // Partial(+): nothing is rounded before the sum is complete
    float* sums;
    __device__ __forceinline__ void put(int c, float v) const { kb::red_add(sums + c, v); }
};

__device__ __forceinline__ void fused_consume(const Params& p, Memory& m) {
    const int head = blockIdx.x / kTeam, part = blockIdx.x % kTeam;
    const kb::Team team{static_cast<int>(threadIdx.x)};
    kb::Guard guard{p.control, &m.ring.aborted, 0};
    kb::Consumer<decltype(m.ring)> in{m.ring};
    const uint32_t first = __ldcg(&p.control->epoch) * kLayers;
    const kb::DigitImage<kXGroup> image{m.image};
    const kb::DigitImage<kDv> o_image{m.image};
    uint64_t* mail = p.mailbox + head * kMailWords;
    const int slice = head * kD * kD + part * kDv;
    State::Regs state;
#pragma unroll 1
    for (int l = 0; l < kLayers; ++l) {
        const Layer& layer = p.layer[l];
        const uint32_t exchange = first + l, tag = exchange + 1;
        guard.phase = l;
        kb::delay(p.delay_seed, l);
        kb::stamp(team, p.stamps, l, kLayers, kEntered);
        // norm
        Norm::Regs norm;
        Norm::enter(team, FusedResidual{p, m.residual, l, exchange}, norm, m.norm_scratch);
        kb::set_quiet(team, m.ring, false);
        kb::stamp(team, p.stamps, l, kLayers, kSummed);
        const unsigned char* page = in.wait(guard);
        Norm::consume(team, 0, 0, page, norm, NormedRow{image, m.row});
        team.sync();
        kb::stamp(team, p.stamps, l, kLayers, kNormed);
        if (l > 0) State::retire(team, 0, state, StateSink{p.layer[l - 1].s + slice});
        // conv operands into registers, or beta
        kb::ShortConv<kD>::Regs conv;
        Beta::Regs beta;
        if (part < 3) kb::ShortConv<kD>::consume(team, part, 0, page + Norm::kPageBytes, conv);
        else Beta::consume(team, head, 0, page + Norm::kPageBytes, beta, RowView{m.row});
        in.release(team, 1);
        in.next();
        // q, k, v or gate
        Qkvg::Regs qkvg;
        Qkvg::begin(qkvg);
#pragma unroll 1
        for (int i = 0; i < QkvgShape::kPages; ++i, in.next()) {
            if (i % kb::Team::kSets != team.set()) continue;
            Qkvg::consume(team, 0, i, in.wait(guard), qkvg, image);
            in.release(team, 2);
        }
        Qkvg::finish(team, 0, qkvg, m.scratch, FusedQkvgSink{m.raw, mail + part * kD, part == 3, tag});
        kb::set_quiet(team, m.ring, p.quiet & 1);
        kb::stamp(team, p.stamps, l, kLayers, kProjected);
        if (part == 3) {
            Beta::finish(team, head, beta, m.norm_scratch, TaggedBetaSink{mail + 4 * kD, tag});
        } else {
            team.sync();
            kb::ShortConv<kD>::finish(team, part, conv, RawView{m.raw},
                                      FusedConvSink{mail + part * kD, layer.window_out[part] + head * kD, tag});
        }
        kb::zero_share(team, p.sums, kHidden, exchange, kBlocks);
        kb::stamp(team, p.stamps, l, kLayers, kPublished);
        // S into registers before the hop: its page depends on nothing
        State::consume(team, 0, 0, in.wait(guard), state);
        in.release(team, 1);
        in.next();
        // team hop
        kb::delay(p.delay_seed, l + 16);
        m.mixed[team.rank / kD][team.rank % kD] = kb::collect(mail + team.rank, tag, guard);
        if (team.rank == 0) m.beta = kb::collect(mail + 4 * kD, tag, guard);
        team.sync();
        kb::set_quiet(team, m.ring, p.quiet & 2);
        kb::stamp(team, p.stamps, l, kLayers, kCollected);
        // state
        const HeadView view{m, part * kDv};
        State::finish(team, 0, state, view, m.scratch, ImageSink{o_image});
        team.sync();
        kb::stamp(team, p.stamps, l, kLayers, kStated);
        // o_proj by rows
        float* sums = kb::replica(p.sums, kHidden, exchange, part);
#pragma unroll 1
        for (int i = 0; i < kORowItems; ++i, in.next()) {
            if (i % kb::Team::kSets != team.set()) continue;
            ORows::Regs rows;
            ORows::begin(rows);
            ORows::consume(team, i, 0, in.wait(guard), rows, o_image);
            in.release(team, 2);
            ORows::finish(team, i, rows, nullptr, AddSink{sums + i * ORowsShape::kCols});
        }
        kb::stamp(team, p.stamps, l, kLayers, kAdded);
        kb::grid_barrier(team, m.ring, guard, (exchange + 1) * kBlocks, p.quiet & 4);
        kb::stamp(team, p.stamps, l, kLayers, kExchanged);
    }
    State::retire(team, 0, state, StateSink{p.layer[kLayers - 1].s + slice});
    // emit: every block sums, the owner of an octet writes it
    if (team.warp() < Norm::kWarps) {
        float h[8];
        FusedResidual{p, m.residual, kLayers, first + kLayers}.h8(team.rank, h);
        if (team.rank % kBlocks == blockIdx.x) store8(p.hidden + team.rank * 8, h);
    }
    kb::leave(team, p.control);
}

__global__ void __launch_bounds__(kb::kThreads, 1) fused_plan(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) unsigned char raw[];
    Memory& m = *reinterpret_cast<Memory*>(raw);
    kb::ring_init(m.ring);
    if (threadIdx.x >= kb::kConsumers) fused_produce(p, m);
    else fused_consume(p, m);
}

}  // namespace day_one
