// What a stage sees (docs/contract.md, section 1): views of its ports, its packed pages, its canonical weights at pack time.
// A stage never loads a page itself, never waits, never places a barrier or a flag.
#pragma once
#include <tuple>

#include "vec.hpp"

#ifdef KB_CHECKED
#define KB_BOUND(ok) \
    do {             \
        if (!(ok)) __builtin_trap(); \
    } while (0)
#else
#define KB_BOUND(ok) \
    do {             \
    } while (0)
#endif

namespace kb {

struct Team {  // the threads that work on one item together; one on a CPU
    int rank = 0, size = 1;
};
struct Launch {  // launch parameters: the same for every block of a step
    int64_t position = 0;  // rows in the cache before this step's append
    int layer = 0;
    bool writer = true;  // in a replicated step only the writer may change state or outputs of the step
};

// Read-only box of a port. `load<V>` of 16 floats or one; bf16 storage is widened.
template <class T>
struct View {
    const T* p;
    size_t n;
    KB_INLINE auto operator[](size_t i) const {
        KB_BOUND(i < n);
        if constexpr (sizeof(T) == 2) return to_float(p[i]);
        else return p[i];
    }
    KB_INLINE f32x16 v16(size_t i) const {
        KB_BOUND(i + 16 <= n);
        return load16(p + i);
    }
    KB_INLINE const T* data(size_t i, size_t count) const {
        KB_BOUND(i + count <= n);
        (void)count;
        return p + i;
    }
};
// A partial tensor read as the sum of its R copies.
template <int R>
struct Sum {
    const float* p;
    size_t n, pitch;
    KB_INLINE float operator[](size_t i) const {
        KB_BOUND(i < n);
        float s = p[i];
        for (int r = 1; r < R; ++r) s += p[r * pitch + i];
        return s;
    }
    KB_INLINE f32x16 v16(size_t i) const {
        KB_BOUND(i + 16 <= n);
        f32x16 s = load16(p + i);
        for (int r = 1; r < R; ++r) s += load16(p + r * pitch + i);
        return s;
    }
};
// Output boxes: Own is written once, Add is added to. State is changed in place.
template <class T>
struct Own {
    T* p;
    size_t n;
    KB_INLINE void put(size_t i, T v) const {
        KB_BOUND(i < n);
        p[i] = v;
    }
    KB_INLINE void put16(size_t i, f32x16 v) const {
        KB_BOUND(i + 16 <= n);
        if constexpr (sizeof(T) == 2)
            store16(p + i, v);
        else store16(p + i, v);
    }
};
struct Add {
    float* p;
    size_t n;
    KB_INLINE void put(size_t i, float v) const {
        KB_BOUND(i < n);
        p[i] += v;
    }
    KB_INLINE void put16(size_t i, f32x16 v) const {
        KB_BOUND(i + 16 <= n);
        store16(p + i, load16(p + i) + v);
    }
};
template <class T>
struct State {
    T* p;
    size_t n;
    KB_INLINE T& operator[](size_t i) const {
        KB_BOUND(i < n);
        return p[i];
    }
    KB_INLINE T* data(size_t i, size_t count) const {
        KB_BOUND(i + count <= n);
        (void)count;
        return p + i;
    }
};
// Sum of a tuple of views (the `ys` of add_norm and emit); an empty tuple gives zero.
template <class Tuple>
KB_INLINE f32x16 sum_v16(const Tuple& views, size_t i) {
    return std::apply([i](const auto&... v) { return (splat(0.0f) + ... + v.v16(i)); }, views);
}
template <class Tuple>
KB_INLINE float sum_at(const Tuple& views, size_t i) {
    return std::apply([i](const auto&... v) { return (0.0f + ... + v[i]); }, views);
}

// ---- pack time ----------------------------------------------------------------------------------------------

// One block of a canonical W4A16 matrix: rows k0..k0+k, columns n0..n0+n. w[k][n] = (code - zero) * scale per 128 rows.
struct W4 {
    const uint8_t* q;   // [rows/2, cols]: row 2j low nibble, row 2j+1 high nibble
    const bf16* scales;  // [rows/128, cols]
    const bf16* zeros;
    int cols, k0, k, n0, n;
    int code(int kk, int nn) const {
        const uint8_t b = q[size_t((k0 + kk) / 2) * cols + n0 + nn];
        return (k0 + kk) % 2 ? b >> 4 : b & 15;
    }
    float scale(int kk, int nn) const { return at(scales, kk, nn); }
    float zero(int kk, int nn) const { return at(zeros, kk, nn); }
    // unaligned: tensors in a file stand where they stand
    float at(const bf16* t, int kk, int nn) const {
        bf16 v;
        std::memcpy(&v, t + size_t((k0 + kk) / 128) * cols + n0 + nn, 2);
        return to_float(v);
    }
};
// One block of a bf16 matrix [rows, cols]: rows n0..n0+n, all k columns (outputs are rows).
struct B16 {
    const bf16* w;
    int cols, n0, n, k;
    float at(int nn, int kk) const {
        bf16 v;
        std::memcpy(&v, w + size_t(n0 + nn) * cols + kk, 2);
        return to_float(v);
    }
};
struct Segment {  // see sandbox/graph.py
    int rows, cols, k0, k, k_stride, n0, n, n_stride;
};
struct Canonical {  // pointers into the read-only weight file
    const uint8_t* q;
    const bf16* scales;
    const bf16* zeros;
    const bf16* raw;
};
// What `pack` gets: unit `index` of a node, its canonical weights by segment.
struct Unit {
    const Canonical* canonical;
    const Segment* segments;
    int period, index;
    W4 w4(int s) const {
        const Segment& g = segments[s];
        const size_t expert = size_t(index / period);
        const int i = index % period;
        const size_t plane = size_t(g.rows) * g.cols;
        const Canonical& c = canonical[s];
        return W4{c.q + expert * plane / 2, c.scales + expert * plane / 128, c.zeros + expert * plane / 128,
                  g.cols, g.k0 + i * g.k_stride, g.k, g.n0 + i * g.n_stride, g.n};
    }
    B16 b16(int s) const {
        const Segment& g = segments[s];
        return B16{canonical[s].raw, g.cols, g.n0 + (index % period) * g.n_stride, g.n, g.k};
    }
    // A tensor with a layout of its own: its first element; the stage knows the rest.
    const bf16* raw(int s) const { return canonical[s].raw; }
    int local() const { return index % period; }
};

}  // namespace kb
