// Runs one stage over its items as the runtime does, from and to plain files. The test generates a Config, the ports and
// one call of `drive` per case.
#pragma once
#include <algorithm>

#include "runtime.hpp"

namespace drive {

struct Arguments {
    int64_t position = 0;
    bool writer = true, cold = false;
    int repeats = 0;  // > 0: measure
    std::FILE *in = nullptr, *out = nullptr;
};

// Exactly as many elements as the case has, 64-byte aligned.
template <class T>
struct Array {
    size_t n;
    T* p;
    explicit Array(size_t count) : n(count), p(static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 127) / 64 * 64))) {
        std::memset(p, 0xff, n * sizeof(T));  // junk: NaN, -1
    }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    ~Array() { std::free(p); }
    void read(std::FILE* f) {
        if (std::fread(p, sizeof(T), n, f) != n) std::exit(3);
    }
    void write(std::FILE* f) const { std::fwrite(p, sizeof(T), n, f); }
};

inline void flush_caches() {
    static Array<char> big(size_t(96) << 20);
    for (size_t i = 0; i < big.n; i += 64) ++big.p[i];
}

struct Bytes {
    std::byte* p;
    size_t n;
};

// `states`: arrays that a step changes, restored before each measured repetition.
template <class S, class Ports>
void stage(const Arguments& a, int item_count, int units, const kb::Canonical& canonical, const kb::Segment& segment, int period,
           size_t unit_floats, std::vector<Bytes> states, Ports ports) {
    Array<std::byte> pages(std::max<size_t>(1, size_t(units) * S::kPages * S::kPageBytes)), scratch(S::kScratchBytes + 1);
    static_assert(S::kPageBytes % 64 == 0);
    if constexpr (S::kPages > 0) {
        Array<float> plain(unit_floats);
        for (int u = 0; u < units; ++u) {
            std::byte* at = pages.p + size_t(u) * S::kPages * S::kPageBytes;
            if (const char* why = S::pack(kb::Unit{&canonical, &segment, period, u}, at)) {
                std::fprintf(stderr, "refused: %s\n", why);
                std::exit(4);
            }
            S::unpack(at, plain.p);
            plain.write(a.out);
        }
    }
    std::vector<int> items;
    for (int i = item_count; i-- > 0;) items.push_back(i);  // any order must do
    kb::Block block;
    block.scratch = scratch.p;
    const auto once = [&] {
        kb::run_items<S>(block, kb::Launch{a.position, 0, a.writer}, pages.p, items.data(), item_count, ports, [&](int i) { return i % units; });
    };
    if (a.repeats == 0) return once();
    std::vector<std::vector<std::byte>> kept;
    for (const Bytes& s : states) kept.emplace_back(s.p, s.p + s.n);
    std::vector<double> us;
    const int inner = a.cold ? 1 : 4;
    for (int r = 0; r < a.repeats; ++r) {
        for (size_t i = 0; i < states.size(); ++i) std::memcpy(states[i].p, kept[i].data(), kept[i].size());
        if (a.cold) flush_caches();
        const uint64_t t = kb::now_ns();
        for (int i = 0; i < inner; ++i) once();
        us.push_back(double(kb::now_ns() - t) / 1e3 / inner);
    }
    std::sort(us.begin(), us.end());
    std::printf("%.3f %.3f\n", us[us.size() / 2], us[0]);
}

inline Arguments arguments(int argc, char** argv) {
    if (argc < 6) std::exit(2);
    Arguments a;
    a.position = std::atoll(argv[2]);
    a.writer = std::atoi(argv[3]) != 0;
    a.in = std::fopen(argv[4], "rb");
    a.out = std::fopen(argv[5], "wb");
    if (argc > 6) a.repeats = std::atoi(argv[6]);
    if (argc > 7) a.cold = std::atoi(argv[7]) != 0;
    if (!a.in || !a.out) std::exit(2);
    return a;
}

}  // namespace drive
