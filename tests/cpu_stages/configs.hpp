// Hand-written imitations of what the assembler generates: one Config per kind of stage.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#include "runtime.hpp"

enum Mode { OWN, ADD };

template <int K_, int N_, int SEGMENTS_, bool WHOLE, Mode M, int LEVELS_, class X = float>
struct LinearConfig {
    struct Ports {
        kb::View<X> x;
        std::conditional_t<M == ADD, kb::Add, kb::Own<float>> y;
    };
    static constexpr int K = K_, N = N_, SEGMENTS = SEGMENTS_, LEVELS = LEVELS_, ITEMS = 1, PERIOD = 1;
    static constexpr bool WHOLE_X = WHOLE, WHOLE_Y = M == ADD;
};

template <int K_, int N_, int PERIOD_, int LEVELS_>
struct UpConfig {
    struct Ports {
        kb::View<float> x;
        kb::View<int32_t> ids;
        kb::Own<float> act;
    };
    static constexpr int K = K_, N = N_, SEGMENTS = 2, LEVELS = LEVELS_, ITEMS = 1, PERIOD = PERIOD_;
    static constexpr bool WHOLE_X = true, WHOLE_IDS = true, WHOLE_ACT = false;
};

template <int N_, int PERIOD_, int LEVELS_>
struct DownConfig {
    struct Ports {
        kb::View<float> x;
        kb::View<int32_t> ids;
        kb::View<float> w;
        kb::Add y;
    };
    static constexpr int K = 128, N = N_, SEGMENTS = 1, LEVELS = LEVELS_, ITEMS = 1, PERIOD = PERIOD_;
    static constexpr bool WHOLE_X = false, WHOLE_IDS = true, WHOLE_W = true, WHOLE_Y = true;
};

template <int LORA_, int LEVELS_>
struct AbsorbConfig {
    struct Ports {
        kb::View<float> q;
        kb::Own<float> qa, qr;
    };
    static constexpr int LORA = LORA_, NOPE = 128, ROPE = 64, SEGMENTS = 1, LEVELS = LEVELS_, ITEMS = 1, PERIOD = 1;
    static constexpr bool WHOLE_Q = false, WHOLE_QA = false, WHOLE_QR = false;
};
