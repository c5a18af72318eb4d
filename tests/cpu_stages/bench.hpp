// Throughput of a stage against the read pass over the same bytes; prints one line per shape and team. Samples are
// short slices of a blob that is larger than the caches, variants in turn, so that other load on the machine spoils some
// samples and not the answer: the median and the best decile are both given.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <string>

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

// One variant of a stage: its units, filled once, and one slice of `per` items.
struct Entry {
    std::string name;
    size_t unit;
    std::function<const char*(std::byte*)> pack;
    std::function<void(kb::Block&, const std::byte*, const int*, int first, int per)> run;
};

// `ports(item)` builds views into small buffers of the calling thread.
template <class S, class MakePorts>
Entry entry(const char* name, const kb::Unit& first, MakePorts make) {
    auto ports = std::make_shared<MakePorts>(std::move(make));
    return {name, S::kPages * S::kPageBytes, [first](std::byte* at) { return S::pack(first, at); },
            [ports](kb::Block& block, const std::byte* blob, const int* items, int from, int per) {
                kb::run_items<S>(block, kb::Launch{}, blob, items + from, per, (*ports)(block.id), [](int i) { return i; });
            }};
}

// Samples every variant and both read passes (over the bytes of that variant) in turn, slice after slice.
template <class... Entries>
void measure(const char* name, const Bench& b, Entries... given) {
    const std::vector<Entry> entries{given...};
    size_t largest = 0;
    for (const Entry& e : entries) largest = std::max(largest, e.unit);
    const int per = int((size_t(4) << 20) / largest) + 1;  // units of one slice of one thread
    const int slices = int(b.bytes / (largest * size_t(per * b.threads))), units = per * b.threads * slices;
    std::vector<std::unique_ptr<kb::Arena>> blobs;
    for (const Entry& e : entries) {
        blobs.push_back(std::make_unique<kb::Arena>(size_t(units) * e.unit));
        std::byte* blob = blobs.back()->data();
        if (const char* why = e.pack(blob)) {
            std::printf("refused: %s\n", why);
            return;
        }
        for (int u = 1; u < units; ++u) std::memcpy(blob + size_t(u) * e.unit, blob, e.unit);
    }
    kb::Arena scratch(size_t(b.threads) << 20);
    std::vector<int> items(static_cast<size_t>(units));
    for (int u = 0; u < units; ++u) items[size_t(u)] = u;
    struct Shared {
        const Entry* entry;
        const std::byte* blob;
        std::byte* scratch;
        const int* items;
        int per, way, slice;
        std::atomic<uint64_t> sink{0};
    } sh{nullptr, nullptr, scratch.data(), items.data(), per, 0, 0, {0}};
    const int32_t cpus[2] = {0, 1};
    kb::Crew crew(b.threads, cpus, &sh);
    const auto job = [](void* self, kb::Block& block) {
        Shared& s = *static_cast<Shared*>(self);
        block.scratch = s.scratch + (size_t(block.id) << 20);
        const int first = (s.slice * block.count + block.id) * s.per;
        const std::byte* mine = s.blob + size_t(first) * s.entry->unit;
        if (s.way == 0) s.sink += kb::read_bytes<0>(mine, size_t(s.per) * s.entry->unit);
        else if (s.way == 1) s.sink += kb::read_bytes<1>(mine, size_t(s.per) * s.entry->unit);
        else s.entry->run(block, s.blob, s.items, first, s.per);
    };
    std::vector<std::vector<double>> rates(entries.size() * 3);  // GB/s
    for (int n = 0; n < b.rounds * slices; ++n) {
        for (size_t v = 0; v < rates.size(); ++v) {
            sh.entry = &entries[v / 3];
            sh.blob = blobs[v / 3]->data();
            sh.way = (int(v) + n) % 3;
            sh.slice = (3 * n + int(v) % 3) % slices;  // bytes that the last samples did not touch
            const uint64_t t = kb::now_ns();
            crew.dispatch(job);
            const double rate = double(size_t(per * b.threads) * sh.entry->unit) / double(kb::now_ns() - t);
            if (n > 0) rates[v / 3 * 3 + size_t(sh.way)].push_back(rate);
        }
    }
    for (size_t e = 0; e < entries.size(); ++e) {
        const auto read = [&](double q) { return std::max(quantile(rates[3 * e], q), quantile(rates[3 * e + 1], q)); };
        const auto stage = [&](double q) { return quantile(rates[3 * e + 2], q); };
        std::printf("%-21s %-23s threads %d  read %.1f  stage %.1f GB/s  share %.2f   (best decile: read %.1f  stage %.1f  share %.2f)\n", name, entries[e].name.c_str(),
                    b.threads, read(0.5), stage(0.5), stage(0.5) / read(0.5), read(0.9), stage(0.9), stage(0.9) / read(0.9));
    }
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
