// What the runtime owns of one cooperative kernel: the page ring and its producer warps, the grid barrier,
// tagged words, replicated accumulators, epochs, spin caps with an abort record, and stamps.
// Stages see a Team, a page pointer and views; they never see anything else of this file.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace kb {

constexpr int kConsumerWarps = 16;
constexpr int kConsumers = kConsumerWarps * 32;
constexpr int kProducers = 64;  // two warps: they stream as fast as four
constexpr int kThreads = kConsumers + kProducers;
constexpr int kReplicas = 4;    // copies of an `add` accumulator
constexpr int kRotation = 3;    // accumulator generations: added to, read, zeroed
constexpr long long kSpinCapCycles = 100LL * 1000 * 1000;  // about 50 ms; a correct wait takes microseconds

// ---------------------------------------------------------------- device memory owned by the runtime

struct AbortRecord {
    uint32_t set, block, phase, counter, seen, expected;
};

// Counters only grow. After an abort the host clears the whole struct, the mailboxes and the accumulators.
struct Control {
    uint32_t epoch;    // launches completed; advanced by the last block to leave
    uint32_t leaving;  // blocks of this launch that are done
    uint32_t pad0[30];
    uint32_t barrier;  // arrivals at the grid barrier since the last reset
    uint32_t pad1[31];
    AbortRecord abort;
};

enum Counter : uint32_t { kCounterFull = 1, kCounterEmpty = 2, kCounterBarrier = 3, kCounterTag = 4 };

// ---------------------------------------------------------------- small PTX wrappers

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void mbarrier_init(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ bool mbarrier_try_wait(uint32_t bar, uint32_t parity) {
    uint32_t ok;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
    return ok != 0;
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void cp_async_16(uint32_t dst, const void* src) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}
// Arrives on `bar` when every earlier cp.async of this thread has landed.
__device__ __forceinline__ void cp_async_arrive(uint32_t bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void red_release_add(uint32_t* p, uint32_t v) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* p) {
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void red_add(float* p, float v) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
}
__device__ __forceinline__ void store_relaxed(uint64_t* p, uint64_t v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* p) {
    uint64_t v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ uint64_t now_ns() {
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
__device__ __forceinline__ float round_bf16(float v) { return __bfloat162float(__float2bfloat16_rn(v)); }

// ---------------------------------------------------------------- team handle

// The consumer warps of one block. A stage may deal pages to `sets` of 8 warps; it never asks for blockDim.
struct Team {
    static constexpr int kSize = kConsumers, kWarps = kConsumerWarps, kSets = 2, kSetSize = kSize / kSets;
    int rank;
    __device__ __forceinline__ int warp() const { return rank >> 5; }
    __device__ __forceinline__ int lane() const { return rank & 31; }
    __device__ __forceinline__ int set() const { return rank / kSetSize; }
    __device__ __forceinline__ int set_rank() const { return rank % kSetSize; }
    __device__ __forceinline__ void sync() const { asm volatile("bar.sync 1, %0;" ::"n"(kSize) : "memory"); }
};

// ---------------------------------------------------------------- waits that cannot hang

struct Guard {
    Control* control;
    volatile uint32_t* aborted;  // shared memory, one per block
    uint32_t phase;

    // Polls until `done`; past the cap it writes the abort record once and lets the block run on (to its end).
    template <class Done>
    __device__ __forceinline__ void spin(uint32_t counter, uint32_t expected, Done done) const {
        uint32_t seen = 0;
        if (done(seen)) return;
        const long long start = clock64();
        while (!done(seen)) {
            if (*aborted) return;
            if (clock64() - start > kSpinCapCycles) {
                *aborted = 1;
                if (atomicCAS(&control->abort.set, 0u, 1u) == 0u) {
                    AbortRecord& r = control->abort;
                    r.block = blockIdx.x, r.phase = phase, r.counter = counter, r.seen = seen, r.expected = expected;
                }
                return;
            }
        }
    }
};

// ---------------------------------------------------------------- page ring

template <int Slots, int SlotBytes>
struct RingMemory {
    static constexpr int kSlots = Slots, kSlotBytes = SlotBytes;
    alignas(128) unsigned char slot[Slots][SlotBytes];
    uint64_t full[Slots], empty[Slots];
    volatile uint32_t quiet;  // the consumers are in a chain of short waits: the producer narrows its cap
    volatile uint32_t aborted;
};

template <class Memory>
__device__ __forceinline__ void ring_init(Memory& m) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < Memory::kSlots; ++i) {
            mbarrier_init(shared_address(&m.full[i]), kProducers);
            mbarrier_init(shared_address(&m.empty[i]), kConsumerWarps);
        }
        m.quiet = 0, m.aborted = 0;
    }
    __syncthreads();
}

// Hint of the consume order to the producer: everything to L2 queues behind the stream, so while the consumers
// hop, exchange and wait, fewer bytes should be in flight.
template <class Memory>
__device__ __forceinline__ void set_quiet(const Team& team, Memory& m, bool quiet) {
    if (team.rank == 0) m.quiet = quiet;
}

struct Cursor {
    uint32_t slot = 0, parity = 0;
    template <int Slots>
    __device__ __forceinline__ void advance() {
        if (++slot == Slots) slot = 0, parity ^= 1;
    }
};

// Copies Bytes from src to the page, all producer threads together, fully unrolled at constant offsets.
template <int Bytes>
__device__ __forceinline__ void copy_bytes(uint32_t dst, const void* src, int thread) {
    static_assert(Bytes % 16 == 0);
    const char* s = static_cast<const char*>(src) + thread * 16;
    const uint32_t d = dst + thread * 16;
    constexpr int kRound = kProducers * 16, kFull = Bytes / kRound, kRest = (Bytes % kRound) / 16;
#pragma unroll
    for (int i = 0; i < kFull; ++i) cp_async_16(d + i * kRound, s + i * kRound);
    if (kRest && thread < kRest) cp_async_16(d + kFull * kRound, s + kFull * kRound);
}

// Rows of RowBytes each, Pitch apart in memory, dense in the page (a slice of a caller's tensor).
template <int Rows, int RowBytes, int Pitch>
__device__ __forceinline__ void copy_rows(uint32_t dst, const void* src, int thread) {
    constexpr int kPer = RowBytes / 16, kTotal = Rows * kPer;
    static_assert(RowBytes % 16 == 0 && Pitch % 16 == 0);
#pragma unroll
    for (int i = 0; i < (kTotal + kProducers - 1) / kProducers; ++i) {
        const int c = thread + i * kProducers;
        if (kTotal % kProducers == 0 || c < kTotal)
            cp_async_16(dst + c * 16, static_cast<const char*>(src) + (c / kPer) * Pitch + (c % kPer) * 16);
    }
}

// The load order of a block, run by the producer warps: begin(), copies, end(), page after page.
template <class Memory>
struct Producer {
    Memory& m;
    Guard guard;
    int thread;
    int wide, narrow;  // pages in flight: while the consumers stream / while they are quiet
    Cursor at{};

    __device__ __forceinline__ uint32_t begin() {
        const uint32_t bar = shared_address(&m.empty[at.slot]);
        guard.spin(kCounterEmpty, at.slot, [&](uint32_t&) { return mbarrier_try_wait(bar, at.parity ^ 1); });
        return shared_address(m.slot[at.slot]);
    }
    __device__ __forceinline__ void end() {
        cp_async_arrive(shared_address(&m.full[at.slot]));
        cp_async_commit();
        at.advance<Memory::kSlots>();
        switch (m.quiet ? narrow : wide) {
            case 1: cp_async_wait<0>(); break;
            case 2: cp_async_wait<1>(); break;
            case 3: cp_async_wait<2>(); break;
            case 4: cp_async_wait<3>(); break;
            case 5: cp_async_wait<4>(); break;
            default: cp_async_wait<7>(); break;
        }
    }
};

// The consume order of a block. A page is released by all 16 warps, or by one set of 8 counting double.
template <class Memory>
struct Consumer {
    Memory& m;
    Cursor at{};

    __device__ __forceinline__ const unsigned char* wait(const Guard& guard) const {
        const uint32_t bar = shared_address(&m.full[at.slot]);
        guard.spin(kCounterFull, at.slot, [&](uint32_t&) { return mbarrier_try_wait(bar, at.parity); });
        return m.slot[at.slot];
    }
    __device__ __forceinline__ void release(const Team& team, uint32_t count) const {
        __syncwarp();
        if (team.lane() == 0) mbarrier_arrive(shared_address(&m.empty[at.slot]), count);
    }
    __device__ __forceinline__ void next() { at.advance<Memory::kSlots>(); }
};

// ---------------------------------------------------------------- grid barrier, tags, accumulators, epochs

// Release by one thread after the team barrier is enough: the barrier makes its add cumulative.
// `quiet` narrows the stream from the arrival on.
template <class Memory>
__device__ __forceinline__ void grid_barrier(const Team& team, Memory& m, const Guard& guard, uint32_t target,
                                             bool quiet) {
    team.sync();
    if (team.rank == 0) {
        m.quiet = quiet;
        uint32_t* counter = &guard.control->barrier;
        red_release_add(counter, 1);
        guard.spin(kCounterBarrier, target, [&](uint32_t& seen) {
            seen = load_acquire(counter);
            return static_cast<int32_t>(seen - target) >= 0;
        });
    }
    team.sync();
}

// A tagged word {value, tag} orders only itself, so it needs no fence.
__device__ __forceinline__ void publish(uint64_t* word, float value, uint32_t tag) {
    store_relaxed(word, (static_cast<uint64_t>(tag) << 32) | __float_as_uint(value));
}
__device__ __forceinline__ float collect(const uint64_t* word, uint32_t tag, const Guard& guard) {
    uint64_t v = 0;
    guard.spin(kCounterTag, tag, [&](uint32_t& seen) {
        v = load_relaxed(word);
        seen = static_cast<uint32_t>(v >> 32);
        return seen == tag;
    });
    return __uint_as_float(static_cast<uint32_t>(v));
}

// Accumulators [kRotation][kReplicas][n]: exchange i adds to generation i, reads i after its barrier, and zeroes
// generation i - 2 (which is i + 1 mod 3) before its barrier: nobody reads that one any more, nobody adds yet.
__device__ __forceinline__ float* replica(float* base, int n, uint32_t exchange, int copy) {
    return base + ((exchange % kRotation) * kReplicas + copy) * n;
}
__device__ __forceinline__ void zero_share(const Team& team, float* base, int n, uint32_t exchange, int blocks) {
    float* p = replica(base, n, exchange + 1, 0);
    for (int i = blockIdx.x * Team::kSize + team.rank; i < kReplicas * n; i += blocks * Team::kSize) p[i] = 0.0f;
}

// Eight consecutive floats, summed over Copies; all loads are in flight at once, past L1. (Swapping halves between
// lane pairs, so that a load covers whole sectors, was slower.)
template <int Copies>
__device__ __forceinline__ void load_octet(const float* base, int pitch, int octet, float (&out)[8]) {
    float4 a[Copies], b[Copies];
#pragma unroll
    for (int r = 0; r < Copies; ++r) {
        const float4* p = reinterpret_cast<const float4*>(base + r * pitch + octet * 8);
        a[r] = __ldcg(p), b[r] = __ldcg(p + 1);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = 0.0f;
#pragma unroll
    for (int r = 0; r < Copies; ++r) {
        out[0] += a[r].x, out[1] += a[r].y, out[2] += a[r].z, out[3] += a[r].w;
        out[4] += b[r].x, out[5] += b[r].y, out[6] += b[r].z, out[7] += b[r].w;
    }
}
__device__ __forceinline__ void sum_replicas(const float* base, int n, uint32_t exchange, int octet, float (&out)[8]) {
    load_octet<kReplicas>(base + (exchange % kRotation) * kReplicas * n, n, octet, out);
}

__device__ __forceinline__ void leave(const Team& team, Control* control) {
    team.sync();
    if (team.rank == 0 && atomicAdd(&control->leaving, 1u) == gridDim.x - 1) {
        control->leaving = 0;
        control->epoch = control->epoch + 1;
    }
}

// Test hook: holds a block back by a pseudo-random time of up to about 16 us when `seed` is not 0.
__device__ __forceinline__ void delay(uint32_t seed, uint32_t point) {
    if (seed == 0) return;
    uint32_t x = (seed * 2654435761u) ^ (blockIdx.x * 40503u + point * 69069u + 1u);
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
    const long long until = clock64() + (x & 32767u);
    while (clock64() < until) {
    }
}

constexpr int kStampsPerPhase = 10;
__device__ __forceinline__ void stamp(const Team& team, uint64_t* stamps, int phase, int phases, int which) {
    if (stamps != nullptr && team.rank == 0)
        stamps[(blockIdx.x * phases + phase) * kStampsPerPhase + which] = now_ns();
}

}  // namespace kb
