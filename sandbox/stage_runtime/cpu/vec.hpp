// Portable vectors (GCC/Clang vector extensions): right on any target, one instruction each where AVX-512 is.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace kb {

struct bf16 {  // storage only; arithmetic is float
    uint16_t bits;
};

#define KB_INLINE inline __attribute__((always_inline))

using f32x16 = float __attribute__((vector_size(64)));
using i32x16 = int32_t __attribute__((vector_size(64)));
using u32x16 = uint32_t __attribute__((vector_size(64)));
using u16x16 = uint16_t __attribute__((vector_size(32)));
using u8x64 = uint8_t __attribute__((vector_size(64)));
using i8x64 = int8_t __attribute__((vector_size(64)));

template <class To, class From>
KB_INLINE To bitcast(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

KB_INLINE float to_float(float x) { return x; }
KB_INLINE float to_float(bf16 x) { return bitcast<float>(uint32_t(x.bits) << 16); }

// Round to nearest even; NaN stays NaN.
KB_INLINE bf16 to_bf16(float x) {
    uint32_t u = bitcast<uint32_t>(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{uint16_t((u >> 16) | 0x40)};
    return bf16{uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

template <class V>
KB_INLINE V load_bytes(const void* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
KB_INLINE f32x16 load16(const float* p) { return load_bytes<f32x16>(p); }
KB_INLINE f32x16 load16(const bf16* p) {
    return bitcast<f32x16>(__builtin_convertvector(load_bytes<u16x16>(p), u32x16) << 16);
}
KB_INLINE void store16(float* p, f32x16 v) { std::memcpy(p, &v, sizeof v); }
KB_INLINE void store16(bf16* p, f32x16 v) {  // to bf16, nearest even; NaN stays NaN
    const u32x16 u = bitcast<u32x16>(v), rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const i32x16 nan = v != v;
    const u16x16 bits = __builtin_convertvector(nan ? ((u >> 16) | 0x40u) : rounded, u16x16);
    std::memcpy(p, &bits, sizeof bits);
}
KB_INLINE f32x16 splat(float x) { return f32x16{} + x; }

KB_INLINE float sum16(f32x16 v) {
    using f32x8 = float __attribute__((vector_size(32)));
    using f32x4 = float __attribute__((vector_size(16)));
    f32x8 a, b;
    std::memcpy(&a, &v, 32);
    std::memcpy(&b, reinterpret_cast<const char*>(&v) + 32, 32);
    a += b;
    f32x4 c, d;
    std::memcpy(&c, &a, 16);
    std::memcpy(&d, reinterpret_cast<const char*>(&a) + 16, 16);
    c += d;
    return (c[0] + c[1]) + (c[2] + c[3]);
}

// exp on 16 lanes: Cephes-style range reduction and a degree-6 polynomial; relative error below 3e-7, clamped to +-87.
KB_INLINE f32x16 exp16(f32x16 x) {
    const f32x16 hi = splat(87.0f), lo = splat(-87.0f);
    x = x > hi ? hi : x;
    x = x < lo ? lo : x;
    f32x16 t = x * 1.44269504088896341f;
    t = t + (t >= splat(0.0f) ? splat(0.5f) : splat(-0.5f));
    const i32x16 n = __builtin_convertvector(t, i32x16);  // truncates towards zero: round to nearest after the +-0.5
    const f32x16 f = __builtin_convertvector(n, f32x16);
    x = x - f * 0.693359375f;
    x = x + f * 2.12194440e-4f;
    f32x16 y = splat(1.9875691500e-4f);
    y = y * x + 1.3981999507e-3f;
    y = y * x + 8.3334519073e-3f;
    y = y * x + 4.1665795894e-2f;
    y = y * x + 1.6666665459e-1f;
    y = y * x + 5.0000001201e-1f;
    y = y * x * x + x + 1.0f;
    return y * bitcast<f32x16>((n + 127) << 23);
}
KB_INLINE f32x16 silu16(f32x16 x) { return x / (exp16(-x) + 1.0f); }

}  // namespace kb
