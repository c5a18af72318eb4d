// What every W4A16 stage checks when it packs, and the plain page of the scalar oracles.

// Why this block cannot be packed, or nullptr. A zero point is subtracted as an integer, so it must be one of 0..15:
// -0, NaN and fractions are refused by their bits. A scale may be any finite number, negative and 0 included.
inline const char* refuse_w4(const kb::W4& w) {
    for (int k = 0; k < w.k; k += 128) {
        for (int n = 0; n < w.n; ++n) {
            const float z = w.zero(k, n), s = w.scale(k, n);
            if (!(z >= 0.0f && z <= 15.0f) || z != float(int(z)) || std::signbit(z)) return "zero point not an integer in 0..15";
            if (!std::isfinite(s)) return "scale not finite";
        }
    }
    return nullptr;
}

constexpr size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// A unit as it stands in the weight file: nibbles [K/2][N] (low = even row), bf16 scales [K/128][N], bf16 zeros
// [K/128][N]; N runs over the SEGMENTS side by side.
template <int K, int N, int SEGMENTS>
struct PlainPage {
    static constexpr size_t kCodes = size_t(K) / 2 * N, kParams = size_t(K) / 128 * N * 2;
    static constexpr size_t kBytes = whole_lines(kCodes + 2 * kParams);

    static const char* pack(const kb::Unit& u, std::byte* dst) {
        std::memset(dst, 0, kBytes);
        constexpr int part = N / SEGMENTS;
        for (int s = 0; s < SEGMENTS; ++s) {
            const kb::W4 w = u.w4(s);
            if (const char* why = refuse_w4(w)) return why;
            for (int k = 0; k < K; k += 2)
                for (int n = 0; n < part; ++n)
                    dst[size_t(k) / 2 * N + s * part + n] = std::byte(w.code(k, n) | w.code(k + 1, n) << 4);
            for (int g = 0; g < K / 128; ++g) {
                for (int n = 0; n < part; ++n) {
                    const kb::bf16 scale = kb::to_bf16(w.scale(g * 128, n)), zero = kb::to_bf16(w.zero(g * 128, n));
                    const size_t at = kCodes + (size_t(g) * N + s * part + n) * 2;
                    std::memcpy(dst + at, &scale, 2);
                    std::memcpy(dst + at + kParams, &zero, 2);
                }
            }
        }
        return nullptr;
    }
    static float param(const std::byte* page, size_t base, int k, int n) {
        kb::bf16 v;
        std::memcpy(&v, page + base + (size_t(k) / 128 * N + n) * 2, 2);
        return kb::to_float(v);
    }
    // (code - zero) * scale of row k, column n.
    static float at(const std::byte* page, int k, int n) {
        const int pair = std::to_integer<int>(page[size_t(k) / 2 * N + n]);
        const float code = float(k % 2 ? pair >> 4 : pair & 15);
        return (code - param(page, kCodes + kParams, k, n)) * param(page, kCodes, k, n);
    }
    static void unpack(const std::byte* page, float* w) {
        for (int k = 0; k < K; ++k)
            for (int n = 0; n < N; ++n) w[size_t(k) * N + n] = at(page, k, n);
    }
};
