// Throughput of a stage against the read pass over the same bytes; prints one line per shape and team. Samples are
// short slices of a blob that is larger than the caches, variants in turn, so that other load on the machine spoils some
// samples and not the answer: the median and the best decile are both given.
#pragma once
#include <algorithm>

#include "configs.hpp"

namespace bench {

struct Bench {
    int threads, rounds;
    size_t bytes;
};

inline double quantile(std::vector<double> v, double q) {
    std::sort(v.begin(), v.end());
    return v[size_t(q * double(v.size() - 1))];
}

// `ports(item)` builds views into small buffers of the calling thread.
template <class S, class MakePorts>
void measure(const char* name, const Bench& b, const kb::Unit& first, MakePorts make_ports) {
    constexpr size_t unit = S::kPages * S::kPageBytes;
    const int per = int((size_t(4) << 20) / unit) + 1;  // units of one slice of one thread
    const int slices = int(b.bytes / (unit * size_t(per * b.threads))), units = per * b.threads * slices;
    kb::Arena blob(size_t(units) * unit), scratch(size_t(b.threads) << 20);
    if (const char* why = S::pack(first, blob.data())) {
        std::printf("refused: %s\n", why);
        return;
    }
    for (int u = 1; u < units; ++u) std::memcpy(blob.data() + size_t(u) * unit, blob.data(), unit);
    std::vector<int> items(static_cast<size_t>(units));
    for (int u = 0; u < units; ++u) items[size_t(u)] = u;
    struct Shared {
        kb::Arena *blob, *scratch;
        const int* items;
        int per, variant, slice;
        MakePorts* make;
        std::atomic<uint64_t> sink{0};
    } sh{&blob, &scratch, items.data(), per, 0, 0, &make_ports, {0}};
    const int32_t cpus[2] = {0, 1};
    kb::Crew crew(b.threads, cpus, &sh);
    const auto job = [](void* self, kb::Block& block) {
        Shared& s = *static_cast<Shared*>(self);
        block.scratch = s.scratch->data() + (size_t(block.id) << 20);
        const int first = (s.slice * block.count + block.id) * s.per;
        const std::byte* mine = s.blob->data() + size_t(first) * unit;
        if (s.variant == 0) s.sink += kb::read_bytes<0>(mine, s.per * unit);
        else if (s.variant == 1) s.sink += kb::read_bytes<1>(mine, s.per * unit);
        else {
            auto ports = (*s.make)(block.id);
            kb::run_items<S>(block, kb::Launch{}, s.blob->data(), s.items + first, s.per, ports, [](int i) { return i; });
        }
    };
    std::vector<double> gb[3];
    for (int n = 0, at = 0; n < b.rounds * slices * 3; ++n, at = (at + 1) % slices) {
        sh.variant = (n + n / 3) % 3;
        sh.slice = at;
        const uint64_t t = kb::now_ns();
        crew.dispatch(job);
        const double rate = double(per * b.threads) * unit / double(kb::now_ns() - t);
        if (n >= slices) gb[sh.variant].push_back(rate);
    }
    const double read = std::max(quantile(gb[0], 0.9), quantile(gb[1], 0.9)), middle = std::max(quantile(gb[0], 0.5), quantile(gb[1], 0.5));
    std::printf("%-26s threads %d  read %.1f  stage %.1f GB/s  share %.2f   (best decile: read %.1f  stage %.1f  share %.2f)\n", name, b.threads, middle, quantile(gb[2], 0.5), quantile(gb[2], 0.5) / middle, read, quantile(gb[2], 0.9), quantile(gb[2], 0.9) / read);
    std::fflush(stdout);
}

// Canonical weights of one segment shape, random codes, small scales, integer zeros.
struct Weights {
    std::vector<uint8_t> q;
    std::vector<kb::bf16> scales, zeros;
    std::vector<kb::Canonical> canonical;
    std::vector<kb::Segment> segments;
    Weights(int k, int n, int parts) : q(size_t(k) * n / 2), scales(size_t(k) / 128 * n), zeros(scales.size()) {
        uint32_t s = 1;
        for (auto& b : q) b = uint8_t((s = s * 1664525u + 1013904223u) >> 24);
        for (auto& v : scales) v = kb::to_bf16(0.002f + 0.00001f * float((s = s * 1664525u + 1013904223u) >> 28));
        for (auto& v : zeros) v = kb::to_bf16(float((s = s * 1664525u + 1013904223u) >> 28));
        canonical.assign(size_t(parts), kb::Canonical{q.data(), scales.data(), zeros.data(), nullptr});
        segments.assign(size_t(parts), kb::Segment{k, n, 0, k, 0, 0, n, 0});
    }
    kb::Unit unit() const { return kb::Unit{canonical.data(), segments.data(), 1, 0}; }
};

template <class C>
struct Linear {  // ports for linear_w4
    std::vector<float> x, y;
    Linear() : x(size_t(C::K) * 2, 0.5f), y(size_t(C::N) * 2) {
        for (size_t i = 0; i < x.size(); ++i) x[i] = float((i * 2654435761u) % 1000) * 0.001f - 0.5f;
    }
    auto operator()(int block) {
        return [this, block](int) {
            return typename C::Ports{{x.data() + size_t(block) * C::K, size_t(C::K)}, {y.data() + size_t(block) * C::N, size_t(C::N)}};
        };
    }
};
template <class C>
struct Up {
    std::vector<float> x, act;
    int32_t ids[8] = {};
    Up() : x(size_t(C::K) * 2), act(size_t(C::N) * 2) {
        for (size_t i = 0; i < x.size(); ++i) x[i] = float((i * 2654435761u) % 1000) * 0.001f - 0.5f;
    }
    auto operator()(int block) {
        return [this, block](int) {
            return typename C::Ports{{x.data() + size_t(block) * C::K, size_t(C::K)}, {ids, 8}, {act.data() + size_t(block) * C::N, size_t(C::N)}};
        };
    }
};
template <class C>
struct Down {
    std::vector<float> x, y;
    float share[8] = {0.3f};
    int32_t ids[8] = {};
    Down() : x(256), y(size_t(C::N) * 2) {
        for (size_t i = 0; i < x.size(); ++i) x[i] = float((i * 2654435761u) % 1000) * 0.001f - 0.5f;
    }
    auto operator()(int block) {
        return [this, block](int) {
            return typename C::Ports{{x.data() + size_t(block) * 128, 128}, {ids, 8}, {share, 8}, {y.data() + size_t(block) * C::N, size_t(C::N)}};
        };
    }
};
template <class C>
struct Absorb {
    std::vector<float> q, out;
    Absorb() : q(192 * 2), out(size_t(C::LORA + 64) * 2) {
        for (size_t i = 0; i < q.size(); ++i) q[i] = float((i * 2654435761u) % 1000) * 0.001f - 0.5f;
    }
    auto operator()(int block) {
        return [this, block](int) {
            float* o = out.data() + size_t(block) * (C::LORA + 64);
            return typename C::Ports{{q.data() + size_t(block) * 192, 192}, {o, size_t(C::LORA)}, {o + C::LORA, 64}};
        };
    }
};

}  // namespace bench
