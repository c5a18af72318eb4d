// Runs one case of one stage over the files of a folder: pack, unpack, run through the runtime's item loop, refuse.
#pragma once
#include <fstream>
#include <limits>

#include "configs.hpp"

namespace driver {

template <class T>
std::vector<T> read_file(const std::string& path) {
    std::ifstream f(path, std::ios::binary | std::ios::ate);
    if (!f) {
        std::fprintf(stderr, "no file %s\n", path.c_str());
        std::exit(3);
    }
    std::vector<T> v(size_t(f.tellg()) / sizeof(T));
    f.seekg(0);
    f.read(reinterpret_cast<char*>(v.data()), std::streamsize(v.size() * sizeof(T)));
    return v;
}
template <class T>
void write_file(const std::string& path, const std::vector<T>& v) {
    std::ofstream f(path, std::ios::binary);
    f.write(reinterpret_cast<const char*>(v.data()), std::streamsize(v.size() * sizeof(T)));
}

// The canonical weights of a case; files q<s>, scales<s>, zeros<s>.
struct Weights {
    std::vector<std::vector<uint8_t>> q;
    std::vector<std::vector<kb::bf16>> scales, zeros;
    std::vector<kb::Segment> segments;
    std::vector<kb::Canonical> canonical;
    int period, units;
    Weights(const std::string& dir, std::vector<kb::Segment> parts, int period_, int units_) : segments(std::move(parts)), period(period_), units(units_) {
        for (size_t s = 0; s < segments.size(); ++s) {
            q.push_back(read_file<uint8_t>(dir + "/q" + std::to_string(s)));
            scales.push_back(read_file<kb::bf16>(dir + "/scales" + std::to_string(s)));
            zeros.push_back(read_file<kb::bf16>(dir + "/zeros" + std::to_string(s)));
        }
        for (size_t s = 0; s < segments.size(); ++s) canonical.push_back({q[s].data(), scales[s].data(), zeros[s].data(), nullptr});
    }
    kb::Unit unit(int index) const { return kb::Unit{canonical.data(), segments.data(), period, index}; }
};

// Packs every unit, writes `unpacked` and what pack says to bad weights. Returns the blob.
template <class S>
std::unique_ptr<kb::Arena> pack_all(const std::string& dir, Weights& w, size_t floats_per_unit) {
    static_assert(S::kPageBytes % 64 == 0);
    constexpr size_t bytes = S::kPages * S::kPageBytes;
    auto blob = std::make_unique<kb::Arena>(bytes * size_t(w.units));
    std::memset(blob->data(), 0xa5, bytes * size_t(w.units));  // pack owns every byte of its unit
    std::vector<float> floats(floats_per_unit * size_t(w.units));
    for (int u = 0; u < w.units; ++u) {
        std::byte* unit = blob->data() + bytes * size_t(u);
        if (const char* why = S::pack(w.unit(u), unit)) {
            std::fprintf(stderr, "refused a good weight: %s\n", why);
            std::exit(4);
        }
        S::unpack(unit, floats.data() + floats_per_unit * size_t(u));
    }
    write_file(dir + "/unpacked", floats);
    std::ofstream said(dir + "/refusals");
    kb::Arena spare(bytes);
    const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    const auto attempt = [&](kb::bf16& cell, float bad) {
        const kb::bf16 good = cell;
        cell = kb::to_bf16(bad);
        const char* why = S::pack(w.unit(w.units - 1), spare.data());
        said << (why ? why : "accepted") << "\n";
        cell = good;
    };
    // the last cell of the last segment belongs to the last unit, except where a segment leaves columns out
    const kb::Segment& g = w.segments.back();
    const int i = (w.units - 1) % w.period, expert = (w.units - 1) / w.period;
    const int row = (g.k0 + i * g.k_stride + g.k - 1) / 128, column = g.n0 + i * g.n_stride + g.n - 1;
    const size_t cell = (size_t(expert) * (g.rows / 128) + size_t(row)) * size_t(g.cols) + size_t(column);
    for (float bad : {nan, -0.0f, 0.5f, 16.0f, -1.0f, inf}) attempt(w.zeros.back()[cell], bad);
    for (float bad : {nan, inf, -inf}) attempt(w.scales.back()[cell], bad);
    attempt(w.scales.back()[cell], -0.25f);  // unusual, not wrong
    return blob;
}

// Runs items in reverse order, as another plan would.
template <class S, class Ports, class UnitOf>
void run(const kb::Arena& blob, int items, int64_t position, Ports ports, UnitOf unit) {
    kb::Arena scratch(S::kScratchBytes + 64);
    std::memset(scratch.data(), 0xff, S::kScratchBytes + 64);
    kb::Block block;
    block.scratch = scratch.data();
    std::vector<int> order;
    for (int i = items; i-- > 0;) order.push_back(i);
    kb::Launch launch;
    launch.position = position;
    kb::run_items<S>(block, launch, blob.data(), order.data(), items, ports, unit);
    for (int i = 0; i < 64; ++i)
        if (scratch.data()[S::kScratchBytes + size_t(i)] != std::byte(0xff)) {
            std::fprintf(stderr, "a stage wrote past its scratch\n");
            std::exit(5);
        }
}

template <class S, class C, class X>
void linear_case(const std::string& dir, std::vector<kb::Segment> segments, int items) {
    Weights w(dir, std::move(segments), items, items);
    auto blob = pack_all<S>(dir, w, size_t(C::K) * C::N);
    const auto x = read_file<X>(dir + "/x");
    auto y = read_file<float>(dir + "/y0");
    run<S>(*blob, items, 0, [&](int item) {
        const size_t xs = C::WHOLE_X ? 0 : size_t(item) * C::K, ys = C::WHOLE_Y ? 0 : size_t(item) * C::N;
        return typename C::Ports{{x.data() + xs, size_t(C::K)}, {y.data() + ys, size_t(C::N)}};
    }, [](int item) { return item; });
    write_file(dir + "/y", y);
}

template <class S, class C>
void up_case(const std::string& dir, std::vector<kb::Segment> segments, int slots, int experts) {
    Weights w(dir, std::move(segments), C::PERIOD, experts * C::PERIOD);
    auto blob = pack_all<S>(dir, w, size_t(C::K) * C::N);
    const auto x = read_file<float>(dir + "/x");
    const auto ids = read_file<int32_t>(dir + "/ids");
    auto y = read_file<float>(dir + "/y0");
    constexpr size_t part = C::N / 2;
    run<S>(*blob, slots * C::PERIOD, 0, [&](int item) {
        return typename C::Ports{{x.data(), x.size()}, {ids.data(), ids.size()}, {y.data() + size_t(item) * part, part}};
    }, [&](int item) { return ids[size_t(item / C::PERIOD)] * C::PERIOD + item % C::PERIOD; });
    write_file(dir + "/y", y);
}

template <class S, class C>
void down_case(const std::string& dir, std::vector<kb::Segment> segments, int slots, int experts) {
    Weights w(dir, std::move(segments), C::PERIOD, experts * C::PERIOD);
    auto blob = pack_all<S>(dir, w, size_t(C::K) * C::N);
    const auto x = read_file<float>(dir + "/x"), share = read_file<float>(dir + "/w");
    const auto ids = read_file<int32_t>(dir + "/ids");
    auto y = read_file<float>(dir + "/y0");
    run<S>(*blob, slots * C::PERIOD, 0, [&](int item) {
        return typename C::Ports{{x.data() + size_t(item) * 128, 128}, {ids.data(), ids.size()}, {share.data(), share.size()}, {y.data(), y.size()}};
    }, [&](int item) { return ids[size_t(item / C::PERIOD)] * C::PERIOD + item % C::PERIOD; });
    write_file(dir + "/y", y);
}

// y holds qa of every head, then qr of every head.
template <class S, class C>
void absorb_case(const std::string& dir, std::vector<kb::Segment> segments, int heads, int64_t position) {
    Weights w(dir, std::move(segments), heads, heads);
    auto blob = pack_all<S>(dir, w, size_t(C::LORA) * C::NOPE);
    const auto q = read_file<float>(dir + "/x");
    auto y = read_file<float>(dir + "/y0");
    constexpr size_t width = C::NOPE + C::ROPE, lora = C::LORA, rope = C::ROPE;
    run<S>(*blob, heads, position, [&](int item) {
        const size_t head = size_t(item);
        return typename C::Ports{{q.data() + head * width, width}, {y.data() + head * lora, lora}, {y.data() + size_t(heads) * lora + head * rope, rope}};
    }, [](int item) { return item; });
    write_file(dir + "/y", y);
}

}  // namespace driver
