// Sizes, shardings and launch parameters shared by the plans of the day-one proof.
#pragma once

#include "../../sandbox/stage_runtime/cuda/runtime.cuh"
#include "../../skills/kda-state/cuda/conv_state.cuh"
#include "../../skills/rmsnorm/cuda/rmsnorm.cuh"
#include "../../skills/w4a16-gemv/cuda/gemv_dp4a.cuh"

namespace day_one {

constexpr int kHidden = 2304, kHeads = 32, kD = 128, kC = kHeads * kD, kLayers = 3;
constexpr int kTeam = 4, kBlocks = kHeads * kTeam, kDv = kD / kTeam, kOwnColumns = kHidden / kBlocks;

using Norm = kb::RmsNorm<kHidden>;
using Beta = kb::BetaDot<kHidden>;
using State = kb::KdaState<kDv>;
constexpr int kXGroup = 64;  // digit group of the normed row: a thread owns two columns x 64 k
using QkvgShape = kb::GemvShape<kD, 2, kXGroup, 256 / kXGroup, kHidden / 256, 2>;
using Qkvg = kb::GemvDp4a<QkvgShape>;
// o_proj, two shardings of one source. Rows: an item is 768 columns x the block's 32 k; sets take items in turn.
using OColumnsShape = kb::GemvShape<kOwnColumns, 1, 128, 8, kC / 1024, 2>;
using ORowsShape = kb::GemvShape<768, 3, kDv, 1, 1, 1>;
using OColumns = kb::GemvDp4a<OColumnsShape>;
using ORows = kb::GemvDp4a<ORowsShape>;
constexpr int kORowItems = kHidden / ORowsShape::kCols;

constexpr int kSlots = 12, kSlotBytes = QkvgShape::kPageBytes;
constexpr int kQkvgBytes = QkvgShape::kPages * QkvgShape::kPageBytes;
constexpr int kFusedBlockBytes = kQkvgBytes + kORowItems * ORowsShape::kPageBytes;
constexpr int kPhasedBlockBytes = kQkvgBytes + OColumnsShape::kPages * OColumnsShape::kPageBytes;

struct Layer {
    const uint8_t* pages;     // [block][bytes of the plan], in issue order
    const uint16_t* norm_w;   // bf16 [hidden]
    const uint16_t* beta_w;   // bf16 [head, hidden]
    const uint16_t* conv_w;   // bf16 [3, C, 4]
    float* s;                 // fp32 [head, k, v], in place
    uint16_t* window[3];      // bf16 [3, C]: read
    uint16_t* window_out[3];  // the same buffer where one block reads and writes a channel, else the other copy
};

struct Params {
    Layer layer[kLayers];
    const uint16_t* token;  // bf16 [hidden]
    float* hidden;          // bf16-valued [hidden]
    float* y;               // bf16-valued [layer, hidden]
    kb::Control* control;
    uint64_t* mailbox;      // [head, 4 * 128 + beta, padded to 520] tagged words (fused)
    float* sums;            // [kRotation, kReplicas, hidden] (fused)
    float* qkvg;            // [head, 4, 128] (three-phase)
    float* beta;            // [head] (three-phase)
    float* o;               // [head, 128] (three-phase)
    uint64_t* stamps;       // or null
    int wide, narrow;       // pages in flight per block
    uint32_t quiet;         // narrow during: 1 the team hop, 2 state and o_proj, 4 the exchange
    uint32_t delay_seed;    // 0, or random delays of blocks (test)
};

constexpr int kMailWords = 4 * kD + 8;

struct alignas(128) Memory {
    kb::RingMemory<kSlots, kSlotBytes> ring;
    alignas(16) unsigned char image[OColumnsShape::kImageBytes];
    alignas(16) uint16_t row[kHidden];       // normed row, bf16
    alignas(16) uint16_t residual[kHidden];  // resident: this block's copy of h, bf16
    alignas(16) float mixed[4][kD];          // q, k, v, gate of the head
    alignas(16) float raw[2 * kD + kDv];     // projections before the convolution
    float beta;
    alignas(16) float scratch[State::kScratchBytes / 4];
    float norm_scratch[16];
};
static_assert(sizeof(Memory) <= 227 * 1024, "shared memory of a block");
static_assert(QkvgShape::kScratchBytes <= State::kScratchBytes && OColumnsShape::kScratchBytes <= State::kScratchBytes);
static_assert(QkvgShape::kImageBytes <= OColumnsShape::kImageBytes && ORowsShape::kImageBytes <= 512);

__device__ __forceinline__ void unpack8(const uint4& v, float (&x)[8]) {
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        x[2 * i] = __uint_as_float(w[i] << 16);
        x[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}
__device__ __forceinline__ uint4 pack8(const float (&x)[8]) {  // x is bf16-valued
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        w[i] = (__float_as_uint(x[2 * i]) >> 16) | (__float_as_uint(x[2 * i + 1]) & 0xffff0000u);
    return make_uint4(w[0], w[1], w[2], w[3]);
}

__device__ __forceinline__ void store8(float* p, const float (&x)[8]) {
    reinterpret_cast<float4*>(p)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(p)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

// Row sink of the norm: digit image for the projections, bf16 row for beta.
struct NormedRow {
    kb::DigitImage<kXGroup> image;
    uint16_t* row;
    __device__ __forceinline__ void x8(int octet, const float (&x)[8]) const {
        image.put8(octet, x, true);
        reinterpret_cast<uint4*>(row)[octet] = pack8(x);
    }
};
struct RowView {
    const uint16_t* shared;
    __device__ __forceinline__ uint32_t row(int pair) const { return reinterpret_cast<const uint32_t*>(shared)[pair]; }
};
struct RawView {
    const float* shared;
    __device__ __forceinline__ float raw(int c) const { return shared[c]; }
};
// q, k, v, gate and beta of the head, from shared memory.
struct HeadView {
    const Memory& m;
    int v0;
    __device__ __forceinline__ float q(int i) const { return m.mixed[0][i]; }
    __device__ __forceinline__ float k(int i) const { return m.mixed[1][i]; }
    __device__ __forceinline__ float v(int i) const { return m.mixed[2][v0 + i]; }
    __device__ __forceinline__ float gate(int i) const { return m.mixed[3][i]; }
    __device__ __forceinline__ float beta() const { return m.beta; }
};
struct StateSink {
    float* s;  // this block's slice of S: row pitch 128
    __device__ __forceinline__ void state(int k, int c, float v) const { s[k * kD + c] = v; }
};

}  // namespace day_one
