// The packed unit of absorb and its rotation. The scales of w vary along d, the reduction axis, and are shared by 128 rows
// r. Page = one such group: bf16 scales [NOPE] and u8 zeros [NOPE] first, because they are needed first; then bands of
// TILES tiles (16 r's x 8 d's, nibbles as in bands.hpp).
template <class C, int TILES>
struct AbsorbPage {
    static_assert(C::LORA % 128 == 0 && C::NOPE % 32 == 0 && C::ROPE % 2 == 0);
    static_assert(8 % TILES == 0, "a page has 8 tiles side by side");
    static constexpr int kBands = 8 / TILES;
    static constexpr size_t kZeros = 2 * C::NOPE, kCodes = (3 * C::NOPE + 63) / 64 * 64, kBand = size_t(C::NOPE) / 8 * TILES * 64;
    static constexpr int kPages = C::LORA / 128;
    static constexpr size_t kPageBytes = kCodes + kBands * kBand;

    static const char* pack(const kb::Unit& u, std::byte* dst) {
        const kb::W4 w = u.w4(0);
        if (const char* why = refuse_w4(w)) return why;
        std::memset(dst, 0, kPages * kPageBytes);
        for (int r = 0; r < C::LORA; ++r) {
            std::byte* page = dst + size_t(r / 128) * kPageBytes;
            for (int d = 0; d < C::NOPE; ++d) page[place(r, d)] |= std::byte(w.code(r, d) << (d % 8 < 4 ? 0 : 4));
        }
        for (int g = 0; g < kPages; ++g) {
            std::byte* page = dst + size_t(g) * kPageBytes;
            for (int d = 0; d < C::NOPE; ++d) {
                const kb::bf16 scale = kb::to_bf16(w.scale(g * 128, d));
                std::memcpy(page + 2 * d, &scale, 2);
                page[kZeros + d] = std::byte(int(w.zero(g * 128, d)));
            }
        }
        return nullptr;
    }
    // w[r * NOPE + d]
    static void unpack(const std::byte* unit, float* w) {
        for (int r = 0; r < C::LORA; ++r) {
            const std::byte* page = unit + size_t(r / 128) * kPageBytes;
            for (int d = 0; d < C::NOPE; ++d) {
                const int pair = std::to_integer<int>(page[place(r, d)]), zero = std::to_integer<int>(page[kZeros + d]);
                kb::bf16 scale;
                std::memcpy(&scale, page + 2 * d, 2);
                w[size_t(r) * C::NOPE + d] = float((d % 8 < 4 ? pair & 15 : pair >> 4) - zero) * kb::to_float(scale);
            }
        }
    }
    // Byte of row r, column d in its page.
    static size_t place(int r, int d) {
        const int lane = r % 128;
        return kCodes + size_t(lane / (16 * TILES)) * kBand + size_t(d / 8 * TILES + lane / 16 % TILES) * 64 + lane % 16 * 4 + d % 4;
    }
};

// qr = RoPE of q's tail.
template <class Table, class Q, class Qr>
KB_INLINE void rotate_tail(const Table& table, const Q& q, size_t nope, int rope, const Qr& qr) {
    for (int j = 0; j < rope / 2; ++j) {
        const size_t at = size_t(2 * j);
        const float a = q[nope + at], b = q[nope + at + 1];
        qr.put(at, a * table.cos[j] - b * table.sin[j]);
        qr.put(at + 1, a * table.sin[j] + b * table.cos[j]);
    }
}
