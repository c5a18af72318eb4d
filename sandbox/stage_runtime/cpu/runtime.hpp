// The runtime of a CPU megakernel: a team of pinned threads (blocks), phases with barriers, events, spin caps with a
// post-mortem, stamps, stop-after-phase. Stages never see any of it (docs/contract.md, section 2).
#pragma once
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "contract.hpp"

namespace kb {

inline uint64_t now_ns() {
    return uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}
inline void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}
#ifdef KB_JITTER
// Random schedules for the race checker: every synchronisation point may be late.
inline void jitter() {
    thread_local uint64_t s = 0x9e3779b97f4a7c15ull ^ uint64_t(reinterpret_cast<uintptr_t>(&s)) ^ now_ns();
    s ^= s << 13, s ^= s >> 7, s ^= s << 17;
    if (s % 4 == 0) std::this_thread::yield();
    for (uint64_t i = s % 512; i > 0; --i) pause_cpu();
}
#else
inline void jitter() {}
#endif

// Memory for packed pages and scratch: 64-byte aligned, huge pages if the kernel will.
class Arena {
public:
    explicit Arena(size_t bytes) : bytes_((bytes + (2u << 20)) & ~size_t((2u << 20) - 1)) {
        p_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p_ == MAP_FAILED) throw std::bad_alloc();
        madvise(p_, bytes_, MADV_HUGEPAGE);
    }
    ~Arena() { munmap(p_, bytes_); }
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    std::byte* data() const { return static_cast<std::byte*>(p_); }

private:
    size_t bytes_;
    void* p_;
};

struct alignas(128) Counter {
    std::atomic<uint64_t> value{0};
};

constexpr uint64_t kSpinCapNs = 5'000'000'000;  // a wait longer than this is a hang: say where, stop the team
constexpr uint64_t kParkNs = 30'000;            // a team that waits longer for its next step sleeps

struct Abort {  // who waited where when the spin cap struck; the first block to give up writes it
    std::atomic<int> raised{0};
    int block = -1, phase = -1;
    const char* what = "";
    uint64_t have = 0, want = 0;
};

struct Block {  // one worker
    int id = 0, count = 1;
    uint64_t passed = 0;  // barriers passed in this step
    std::byte* scratch = nullptr;
    uint64_t* stamps = nullptr;  // [phase][3]: begin, end of work, end of barrier
};

// Everything the blocks share.
class Grid {
public:
    Grid(int blocks, int events) : blocks_(blocks), event_count_(events), events_(new Counter[size_t(events) + 1]) {}
    Abort abort;

    // Wait until counter >= want. False after an abort.
    bool wait(const Block& b, int phase, const char* what, const std::atomic<uint64_t>& c, uint64_t want) {
        jitter();
        uint64_t start = 0;
        for (unsigned spins = 0; c.load(std::memory_order_acquire) < want; ++spins) {
            pause_cpu();
            if ((spins & 1023u) != 1023u) continue;
            if (abort.raised.load(std::memory_order_acquire)) return false;
            const uint64_t t = now_ns();
            if (start == 0) start = t;
            if (t - start > kSpinCapNs) {
                give_up(b, phase, what, c.load(std::memory_order_relaxed), want);
                return false;
            }
            if (t - start > 200'000) sched_yield();  // the other block has no core: do not fight it
        }
        return true;
    }
    bool barrier(Block& b, int phase) {
        jitter();
        ++b.passed;
        barrier_.value.fetch_add(1, std::memory_order_acq_rel);
        return wait(b, phase, "grid barrier", barrier_.value, b.passed * uint64_t(blocks_));
    }
    void signal(int event) {
        jitter();
        events_[event].value.fetch_add(1, std::memory_order_release);
    }
    bool wait_event(const Block& b, int phase, const char* name, int event, uint64_t count) {
        return wait(b, phase, name, events_[event].value, count);
    }
    // Between launches, by the launching thread: a step may have stopped early or been aborted.
    void reset() {
        barrier_.value.store(0, std::memory_order_relaxed);
        for (int e = 0; e < event_count_; ++e) events_[e].value.store(0, std::memory_order_relaxed);
        abort.raised.store(0, std::memory_order_relaxed);
    }

private:
    void give_up(const Block& b, int phase, const char* what, uint64_t have, uint64_t want) {
        int expected = 0;
        if (abort.raised.compare_exchange_strong(expected, 1, std::memory_order_acq_rel)) {
            abort.block = b.id, abort.phase = phase, abort.what = what, abort.have = have, abort.want = want;
            abort.raised.store(2, std::memory_order_release);
        }
    }
    int blocks_, event_count_;
    Counter barrier_;
    std::unique_ptr<Counter[]> events_;
};

// The threads. The caller is block 0; the others park between steps. One `dispatch` = one launch of the whole team.
class Crew {
public:
    using Job = void (*)(void* self, Block&);
    Crew(int threads, const int32_t* cpus, void* self) : self_(self), blocks_(size_t(threads)) {
        for (int i = 0; i < threads; ++i) blocks_[size_t(i)].id = i, blocks_[size_t(i)].count = threads;
        if (cpus) pin(cpus[0]);
        for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i, cpu = cpus ? cpus[i] : -1] { work(i, cpu); });
    }
    ~Crew() {
        job_ = nullptr;
        generation_.fetch_add(1, std::memory_order_release);
        generation_.notify_all();
        for (auto& t : threads_) t.join();
    }
    Block& block(int i) { return blocks_[size_t(i)]; }
    int size() const { return int(blocks_.size()); }
    uint64_t dispatches() const { return dispatches_; }

    void dispatch(Job job) {
        ++dispatches_;
        job_ = job;
        const uint64_t g = generation_.fetch_add(1, std::memory_order_release) + 1;
        generation_.notify_all();
        job(self_, blocks_[0]);
        const uint64_t want = g * uint64_t(blocks_.size() - 1);
        while (done_.load(std::memory_order_acquire) < want) pause_cpu();  // every block ends: its own waits are capped
    }

private:
    static void pin(int cpu) {
        if (cpu < 0) return;
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // best effort: the box may allow fewer cores
    }
    void work(int i, int cpu) {
        pin(cpu);
        uint64_t seen = 0;
        for (;;) {
            const uint64_t start = now_ns();
            uint64_t g;
            for (unsigned n = 0; (g = generation_.load(std::memory_order_acquire)) == seen; ++n) {
                pause_cpu();
                if ((n & 255u) == 255u && now_ns() - start > kParkNs) generation_.wait(seen, std::memory_order_acquire);
            }
            seen = g;
            if (!job_) return;
            job_(self_, blocks_[size_t(i)]);
            done_.fetch_add(1, std::memory_order_release);
        }
    }
    void* self_;
    Job job_ = nullptr;
    std::vector<Block> blocks_;
    std::vector<std::thread> threads_;
    alignas(128) std::atomic<uint64_t> generation_{0};
    alignas(128) std::atomic<uint64_t> done_{0};
    uint64_t dispatches_ = 0;
};

// ---- running the items of one step --------------------------------------------------------------------------

template <class S>
concept HasEnter = requires { &S::enter; };

// S: a stage; `ports(item)` builds its views; `unit(item)` names its packed unit (dynamic pages resolve here).
template <class S, class Ports, class UnitOf>
KB_INLINE void run_items(Block& b, const Launch& run, const std::byte* pages, const int* items, int count, Ports ports, UnitOf unit) {
    if (count == 0) return;
    const Team team{};
    if constexpr (HasEnter<S>) S::enter(team, run, ports(items[0]), b.scratch);
    for (int i = 0; i < count; ++i) {
        const int item = items[i];
        const auto p = ports(item);
        typename S::Regs regs;
        S::begin(team, run, item, p, regs, b.scratch);
        if constexpr (S::kPages > 0) {
            const std::byte* data = pages + size_t(unit(item)) * S::kPages * S::kPageBytes;
            for (int page = 0; page < S::kPages; ++page) S::consume(team, run, item, page, data + size_t(page) * S::kPageBytes, p, regs, b.scratch);
        }
        S::finish(team, run, item, p, regs, b.scratch);
    }
}

// The null consume of the read pass: every byte of [p, p + bytes) passes through a register.
template <int Variant>
inline uint64_t read_bytes(const void* at, size_t bytes) {
    using Lane = uint64_t __attribute__((vector_size(64)));
    const char* p = static_cast<const char*>(at);
    Lane a[8] = {};
    size_t i = 0;
    for (; i + 512 <= bytes; i += 512) {
        if constexpr (Variant == 1) for (int j = 0; j < 8; ++j) __builtin_prefetch(p + i + 4096 + 64 * j, 0, 3);
        if constexpr (Variant == 2) for (int j = 0; j < 8; ++j) __builtin_prefetch(p + i + 2048 + 64 * j, 0, 0);
        for (int j = 0; j < 8; ++j) a[j] |= load_bytes<Lane>(p + i + 64 * j);
    }
    for (; i + 64 <= bytes; i += 64) a[0] |= load_bytes<Lane>(p + i);
    for (int j = 1; j < 8; ++j) a[0] |= a[j];
    uint64_t s = 0;
    for (int j = 0; j < 8; ++j) s |= a[0][j];
    return s;
}

}  // namespace kb
