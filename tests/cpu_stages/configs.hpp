// Hand-written imitations of what the assembler generates: one Config per kind of stage; KNOBS has the knobs as constants.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#include "runtime.hpp"

enum Mode { OWN, ADD };

template <int K_, int N_, int SEGMENTS_, bool WHOLE, Mode M, class KNOBS, class X = float>
struct LinearConfig : KNOBS {
    struct Ports {
        kb::View<X> x;
        std::conditional_t<M == ADD, kb::Add, kb::Own<float>> y;
    };
    static constexpr int K = K_, N = N_, SEGMENTS = SEGMENTS_, ITEMS = 1, PERIOD = 1;
    static constexpr bool WHOLE_X = WHOLE, WHOLE_Y = M == ADD;
};

template <int K_, int N_, int PERIOD_, class KNOBS>
struct UpConfig : KNOBS {
    struct Ports {
        kb::View<float> x;
        kb::View<int32_t> ids;
        kb::Own<float> act;
    };
    static constexpr int K = K_, N = N_, SEGMENTS = 2, ITEMS = 1, PERIOD = PERIOD_;
    static constexpr bool WHOLE_X = true, WHOLE_IDS = true, WHOLE_ACT = false;
};

template <int N_, int PERIOD_, class KNOBS>
struct DownConfig : KNOBS {
    struct Ports {
        kb::View<float> x;
        kb::View<int32_t> ids;
        kb::View<float> w;
        kb::Add y;
    };
    static constexpr int K = 128, N = N_, SEGMENTS = 1, ITEMS = 1, PERIOD = PERIOD_;
    static constexpr bool WHOLE_X = false, WHOLE_IDS = true, WHOLE_W = true, WHOLE_Y = true;
};

template <int LORA_, class KNOBS>
struct AbsorbConfig : KNOBS {
    struct Ports {
        kb::View<float> q;
        kb::Own<float> qa, qr;
    };
    static constexpr int LORA = LORA_, NOPE = 128, ROPE = 64, SEGMENTS = 1, ITEMS = 1, PERIOD = 1;
    static constexpr bool WHOLE_Q = false, WHOLE_QA = false, WHOLE_QR = false;
};
