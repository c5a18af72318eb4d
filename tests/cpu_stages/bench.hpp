// Throughput of a stage against the read pass over the same bytes, interleaved; prints one JSON line per shape and team.
#pragma once
#include <algorithm>

#include "configs.hpp"

namespace bench {

struct Bench {
    int threads, rounds;
    size_t bytes;
};

inline double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

// `ports(item)` builds views into small buffers of the calling thread.
template <class S, class MakePorts>
void measure(const char* name, const Bench& b, const kb::Unit& first, MakePorts make_ports) {
    constexpr size_t unit = S::kPages * S::kPageBytes;
    const int per = int(b.bytes / unit) / b.threads, units = per * b.threads;
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
        int per, variant;
        MakePorts* make;
        std::atomic<uint64_t> sink{0};
        std::atomic<int> at{0};
        std::vector<uint64_t> ends;
    } sh{&blob, &scratch, items.data(), per, 0, &make_ports, {0}, {0}, std::vector<uint64_t>(16)};
    const int32_t cpus[2] = {0, 1};
    kb::Crew crew(b.threads, cpus, &sh);
    const auto job = [](void* self, kb::Block& block) {
        Shared& s = *static_cast<Shared*>(self);
        block.scratch = s.scratch->data() + (size_t(block.id) << 20);
        const std::byte* mine = s.blob->data() + size_t(block.id) * s.per * unit;
        if (s.variant == 0) s.sink += kb::read_bytes<0>(mine, s.per * unit);
        else if (s.variant == 1) s.sink += kb::read_bytes<1>(mine, s.per * unit);
        else {
            auto ports = (*s.make)(block.id);
            kb::run_items<S>(block, kb::Launch{}, s.blob->data(), s.items + size_t(block.id) * s.per, s.per, ports, [](int i) { return i; });
        }
    };
    std::vector<double> gb[3], ratio;
    for (int round = 0; round < b.rounds + 1; ++round) {
        double rate[3];
        for (int v = 0; v < 3; ++v) {
            sh.variant = (v + round) % 3;
            const uint64_t t = kb::now_ns();
            crew.dispatch(job);
            rate[sh.variant] = double(units) * unit / double(kb::now_ns() - t);
        }
        if (round == 0) continue;
        for (int v = 0; v < 3; ++v) gb[v].push_back(rate[v]);
        ratio.push_back(rate[2] / std::max(rate[0], rate[1]));
    }
    std::printf("{\"shape\": \"%s\", \"threads\": %d, \"unit_bytes\": %zu, \"read_gbs\": %.1f, \"read_prefetch_gbs\": %.1f, \"stage_gbs\": %.1f, \"share\": %.3f}\n", name, b.threads, unit, median(gb[0]), median(gb[1]), median(gb[2]), median(ratio));
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
