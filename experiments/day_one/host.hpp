// Host side of the day-one proof: random quantised weights, the fp64 oracle, error measures.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "problem.cuh"

namespace day_one {

inline uint16_t to_bf16(double x) {  // round to nearest even, by way of fp32
    const float f = static_cast<float>(x);
    uint32_t b;
    std::memcpy(&b, &f, 4);
    return static_cast<uint16_t>((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}
inline double rounded(double x) { return kb::bf16_to_float(to_bf16(x)); }

struct Random {
    uint64_t state;
    uint64_t next() {
        uint64_t z = (state += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    void normal(float* out, size_t n, float sigma) {
        for (size_t i = 0; i < n; i += 2) {
            const uint64_t z = next();
            const float u = (static_cast<float>(z >> 40) + 0.5f) * 0x1p-24f;
            const float a = static_cast<float>(z & 0xffffff) * (6.2831853f * 0x1p-24f);
            const float r = sigma * std::sqrt(-2.0f * std::log(u));
            out[i] = r * std::cos(a);
            if (i + 1 < n) out[i + 1] = r * std::sin(a);
        }
    }
};

struct Linear {  // owns what kb::QuantLinear points to
    int k = 0, n = 0;
    std::vector<uint8_t> w_q;
    std::vector<uint16_t> scales, zeros;
    void shape(int k_, int n_) {
        k = k_, n = n_;
        w_q.assign(static_cast<size_t>(k / 2) * n, 0);
        scales.assign(static_cast<size_t>(k / 128) * n, 0);
        zeros = scales;
    }
    kb::QuantLinear view() const {
        return {k, n, const_cast<uint8_t*>(w_q.data()), const_cast<uint16_t*>(scales.data()),
                const_cast<uint16_t*>(zeros.data())};
    }
    // Weights N(0, 0.02^2), quantised per group of 128 along k as the problem page says.
    void draw(uint64_t seed) {
        Random random{seed};
        std::vector<float> w(128);
        for (int g = 0; g < k / 128; ++g)
            for (int c = 0; c < n; ++c) {
                random.normal(w.data(), 128, 0.02f);
                const auto [low, high] = std::minmax_element(w.begin(), w.end());
                const float scale = std::max(*high - *low, 1e-8f) / 15.0f;
                const float zero = std::min(15.0f, std::max(0.0f, std::nearbyint(-*low / scale)));
                for (int i = 0; i < 128; ++i) {
                    const float level = std::nearbyint(w[i] / scale + zero);
                    const int q = static_cast<int>(std::min(15.0f, std::max(0.0f, level)));
                    w_q[static_cast<size_t>((g * 128 + i) / 2) * n + c] |= (i & 1) ? q << 4 : q;
                }
                scales[static_cast<size_t>(g) * n + c] = to_bf16(scale);
                zeros[static_cast<size_t>(g) * n + c] = to_bf16(zero);
            }
    }
    // y = x W, fp64. `bf16_weights` rounds each dequantised weight to bf16, as the reference module does.
    void apply(const double* x, double* y, bool bf16_weights) const {
        std::vector<float> row(n);
        std::fill(y, y + n, 0.0);
        for (int i = 0; i < k; ++i) {
            const size_t g = static_cast<size_t>(i / 128) * n;
            const uint8_t* q = &w_q[static_cast<size_t>(i / 2) * n];
            const int shift = (i & 1) * 4;
            for (int c = 0; c < n; ++c) {
                const float w = (static_cast<float>((q[c] >> shift) & 15) - kb::bf16_to_float(zeros[g + c])) *
                                kb::bf16_to_float(scales[g + c]);
                row[c] = bf16_weights ? kb::bf16_to_float(to_bf16(w)) : w;
            }
            for (int c = 0; c < n; ++c) y[c] += x[i] * row[c];
        }
    }
};

struct HostLayer {
    Linear proj[4], o_proj;
    std::vector<uint16_t> norm_w, beta_w, conv_w;
};

struct HostState {
    std::vector<float> s[kLayers];           // [head, k, v]
    std::vector<uint16_t> window[kLayers][3];  // [3, C]
};

struct HostOutput {
    std::vector<float> y[kLayers], hidden;
};

inline std::vector<uint16_t> draw_bf16(size_t n, float sigma, float mean, uint64_t seed) {
    std::vector<float> f(n);
    Random{seed}.normal(f.data(), n, sigma);
    std::vector<uint16_t> out(n);
    for (size_t i = 0; i < n; ++i) out[i] = to_bf16(f[i] + mean);
    return out;
}

// Runs jobs 0..n-1 on as many threads as there are cores.
template <class Job>
void parallel(int n, Job job) {
    const int threads = std::max(1, std::min<int>(n, static_cast<int>(std::thread::hardware_concurrency())));
    std::vector<std::thread> pool;
    for (int t = 0; t < threads; ++t)
        pool.emplace_back([=] {
            for (int i = t; i < n; i += threads) job(i);
        });
    for (auto& t : pool) t.join();
}

inline void draw_model(HostLayer (&model)[kLayers], HostState& state) {
    parallel(kLayers * 5, [&](int i) {
        Linear& w = i % 5 < 4 ? model[i / 5].proj[i % 5] : model[i / 5].o_proj;
        if (i % 5 < 4) w.shape(kHidden, kC);
        else w.shape(kC, kHidden);
        w.draw(1000 + i);
    });
    for (int l = 0; l < kLayers; ++l) {
        model[l].norm_w = draw_bf16(kHidden, 0.1f, 1.0f, 2000 + l);
        model[l].beta_w = draw_bf16(static_cast<size_t>(kHeads) * kHidden, 0.02f, 0.0f, 2100 + l);
        model[l].conv_w = draw_bf16(3 * kC * 4, 0.1f, 0.0f, 2200 + l);
        state.s[l].resize(static_cast<size_t>(kHeads) * kD * kD);
        Random{2300u + l}.normal(state.s[l].data(), state.s[l].size(), 0.05f);
        for (int m = 0; m < 3; ++m) state.window[l][m] = draw_bf16(3 * kC, 0.1f, 0.0f, 2400 + 3 * l + m);
    }
}

// The values that kb::DigitImage<group> holds, by the same fp32 steps.
inline void round_to_digits(std::vector<double>& x, int group) {
    for (size_t g = 0; g < x.size(); g += group) {
        float top = 1e-30f;
        for (int i = 0; i < group; ++i) top = std::max(top, std::fabs(static_cast<float>(x[g + i])));
        const float scale = top * (1.0f / 127.0f), inverse = 1.0f / scale;
        for (int i = 0; i < group; ++i) {
            const float q = static_cast<float>(x[g + i]) * inverse;
            const float a = std::nearbyint(q), b = std::fmaf(q - a, 254.0f, 12582912.0f) - 12582912.0f;
            x[g + i] = static_cast<double>(scale * (1.0f / 254.0f)) * (254.0 * a + b);
        }
    }
}

// One step of the three blocks in fp64 with the problem's bf16 rounding points; the state advances.
// `o_digits` 0: exact activations. 128 or 32: activations rounded to the digit image's two int8 levels first, with
// that group size at o_proj; what is then left of a kernel's error is fp32 arithmetic.
inline HostOutput oracle(const HostLayer (&model)[kLayers], HostState& state, const std::vector<uint16_t>& token,
                         bool bf16_weights, int o_digits) {
    HostOutput out;
    std::vector<double> h(kHidden), x(kHidden), projected, mixed(4 * kC), o(kC), y(kHidden), beta(kHeads);
    for (int c = 0; c < kHidden; ++c) h[c] = kb::bf16_to_float(token[c]);
    for (int l = 0; l < kLayers; ++l) {
        const HostLayer& w = model[l];
        double square = 0;
        for (double v : h) square += v * v;
        const double rstd = 1.0 / std::sqrt(square / kHidden + 1e-6);
        for (int c = 0; c < kHidden; ++c) x[c] = rounded(h[c] * rstd * kb::bf16_to_float(w.norm_w[c]));
        if (o_digits) round_to_digits(projected = x, kXGroup);
        else projected = x;
        parallel(4, [&](int m) { w.proj[m].apply(projected.data(), &mixed[m * kC], bf16_weights); });
        for (double& v : mixed) v = rounded(v);
        for (int head = 0; head < kHeads; ++head) {
            double sum = 0;
            for (int c = 0; c < kHidden; ++c) sum += x[c] * kb::bf16_to_float(w.beta_w[head * kHidden + c]);
            beta[head] = 1.0 / (1.0 + std::exp(-rounded(sum)));
        }
        for (int m = 0; m < 3; ++m)
            for (int c = 0; c < kC; ++c) {
                uint16_t* win = state.window[l][m].data();
                const uint16_t* taps = &w.conv_w[(static_cast<size_t>(m) * kC + c) * 4];
                double sum = mixed[m * kC + c] * kb::bf16_to_float(taps[3]);
                for (int i = 0; i < 3; ++i)
                    sum += static_cast<double>(kb::bf16_to_float(win[i * kC + c])) * kb::bf16_to_float(taps[i]);
                win[c] = win[kC + c], win[kC + c] = win[2 * kC + c], win[2 * kC + c] = to_bf16(mixed[m * kC + c]);
                mixed[m * kC + c] = rounded(sum / (1.0 + std::exp(-sum)));
            }
        for (int head = 0; head < kHeads; ++head) {
            const double *q = &mixed[head * kD], *k = &mixed[kC + head * kD], *v = &mixed[2 * kC + head * kD],
                         *gate = &mixed[3 * kC + head * kD];
            float* s = &state.s[l][static_cast<size_t>(head) * kD * kD];
            for (int c = 0; c < kD; ++c) {
                double column[kD], pred = 0, sum = 0;
                for (int i = 0; i < kD; ++i) {
                    column[i] = s[i * kD + c] * std::exp(-std::log1p(std::exp(gate[i])));
                    pred += column[i] * k[i];
                }
                for (int i = 0; i < kD; ++i) {
                    column[i] += beta[head] * k[i] * (v[c] - pred);
                    sum += column[i] * q[i] / std::sqrt(128.0);
                    s[i * kD + c] = static_cast<float>(column[i]);
                }
                o[head * kD + c] = rounded(sum);
            }
        }
        if (o_digits) round_to_digits(o, o_digits);
        w.o_proj.apply(o.data(), y.data(), bf16_weights);
        for (int c = 0; c < kHidden; ++c) y[c] = rounded(y[c]), h[c] = rounded(h[c] + y[c]);
        out.y[l].assign(y.begin(), y.end());
    }
    out.hidden.assign(h.begin(), h.end());
    return out;
}

// ||a - b|| / ||b||; a NaN anywhere gives NaN, which no gate passes.
template <class A, class B>
double relative_rms(const A* a, const B* b, size_t n) {
    double top = 0, bottom = 0;
    for (size_t i = 0; i < n; ++i) {
        const double d = static_cast<double>(a[i]) - b[i];
        top += d * d, bottom += static_cast<double>(b[i]) * b[i];
    }
    return std::sqrt(top / bottom);
}
inline double relative_rms_bf16(const uint16_t* a, const uint16_t* b, size_t n) {
    std::vector<float> fa(n), fb(n);
    for (size_t i = 0; i < n; ++i) fa[i] = kb::bf16_to_float(a[i]), fb[i] = kb::bf16_to_float(b[i]);
    return relative_rms(fa.data(), fb.data(), n);
}

// ---------------------------------------------------------------- packing a plan's weights for all blocks of a layer

// Calls f.template operator()<Shape>(linear, first column, first k, offset in the layer's blob) for every page.
template <class F>
void for_each_page(bool fused, F f) {
    for (int b = 0; b < kBlocks; ++b) {
        const int head = b / kTeam, part = b % kTeam;
        size_t at = static_cast<size_t>(b) * (fused ? kFusedBlockBytes : kPhasedBlockBytes);
        for (int i = 0; i < QkvgShape::kPages; ++i, at += QkvgShape::kPageBytes)
            f(QkvgShape{}, part, head * kD, i * 256, at);
        if (fused)
            for (int i = 0; i < kORowItems; ++i, at += ORowsShape::kPageBytes)
                f(ORowsShape{}, 4, i * ORowsShape::kCols, head * kD + part * kDv, at);
        else
            for (int i = 0; i < OColumnsShape::kPages; ++i, at += OColumnsShape::kPageBytes)
                f(OColumnsShape{}, 4, b * kOwnColumns, i * 1024, at);
    }
}
inline std::vector<uint8_t> pack_layer(const HostLayer& w, bool fused) {
    std::vector<uint8_t> blob(static_cast<size_t>(kBlocks) * (fused ? kFusedBlockBytes : kPhasedBlockBytes));
    for_each_page(fused, [&](auto shape, int which, int column, int k, size_t at) {
        const Linear& source = which < 4 ? w.proj[which] : w.o_proj;
        kb::pack_page<decltype(shape)>(source.view(), column, k, blob.data() + at);
    });
    return blob;
}
// True when unpacking the blob gives back every byte of the five linears.
inline bool unpack_matches(const HostLayer& w, const std::vector<uint8_t>& blob, bool fused) {
    Linear back[5];
    for (int i = 0; i < 5; ++i) i < 4 ? back[i].shape(kHidden, kC) : back[i].shape(kC, kHidden);
    for_each_page(fused, [&](auto shape, int which, int column, int k, size_t at) {
        kb::unpack_page<decltype(shape)>(back[which].view(), column, k, blob.data() + at);
    });
    bool same = true;
    for (int i = 0; i < 5; ++i) {
        const Linear& a = i < 4 ? w.proj[i] : w.o_proj;
        same = same && a.w_q == back[i].w_q && a.scales == back[i].scales && a.zeros == back[i].zeros;
    }
    return same;
}

}  // namespace day_one
