// absorb: qa[r] = sum_d q[d] w[r,d] and qr = RoPE of q's tail. The scales of w vary along d, the reduction axis, and are
// shared by 128 rows r: per such group q[d] * scale[d] becomes digits; lanes are 16 rows, 4 d's per lane.
// Page = one group: bf16 scales [NOPE] and u8 zeros [NOPE] first, because they are needed first; then two bands of 4 tiles
// (16 r's x 8 d's, as in digits.hpp).
template <class C>
struct Stage {
    using Ports = typename C::Ports;
    static_assert(C::LORA % 128 == 0 && C::NOPE % 32 == 0 && C::ROPE % 2 == 0);
    using Image = Digits<C::LEVELS, C::NOPE>;
    using Table = RopeTable<C::ROPE>;
    struct Regs {};
    static constexpr size_t kZeros = 2 * C::NOPE, kCodes = (3 * C::NOPE + 63) / 64 * 64, kBand = size_t(C::NOPE) / 8 * 4 * 64;
    static constexpr int kPages = C::LORA / 128;
    static constexpr size_t kPageBytes = kCodes + 2 * kBand;
    static constexpr size_t kScratchBytes = sizeof(Table);

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
        return kCodes + size_t(lane / 64) * kBand + size_t(d / 8 * 4 + lane % 64 / 16) * 64 + lane % 16 * 4 + d % 4;
    }

    static void enter(kb::Team, const kb::Launch& run, const Ports&, std::byte* scratch) { reinterpret_cast<Table*>(scratch)->fill(run.position); }
    static void begin(kb::Team, const kb::Launch&, int, const Ports& p, Regs&, std::byte* scratch) {
        const Table& t = *reinterpret_cast<const Table*>(scratch);
        for (int j = 0; j < C::ROPE / 2; ++j) {
            const size_t at = size_t(2 * j);
            const float a = p.q[C::NOPE + at], b = p.q[C::NOPE + at + 1];
            p.qr.put(at, a * t.cos[j] - b * t.sin[j]);
            p.qr.put(at + 1, a * t.sin[j] + b * t.cos[j]);
        }
    }
    static KB_INLINE void consume(kb::Team, const kb::Launch&, int, int page, const std::byte* data, const Ports& p, Regs&, std::byte*) {
        kb::f32x16 v[C::NOPE / 16];
        const kb::bf16* scales = reinterpret_cast<const kb::bf16*>(data);
        for (int i = 0; i < C::NOPE / 16; ++i) v[i] = p.q.v16(size_t(16 * i)) * kb::load16(scales + 16 * i);
        Image x;
        quantise<C::LEVELS, C::NOPE>(v, x, [data](int i, kb::i32x16 integers) { return integers * widen_u8(data + kZeros + 16 * i); });
        for (int half = 0; half < 2; ++half) {
            kb::i32x16 dot[4];
            dot_tiles<4>(data + kCodes + half * kBand, x, dot);
            for (int t = 0; t < 4; ++t) p.qa.put16(size_t(page) * 128 + half * 64 + 16 * t, to_f32(dot[t] - x.sum) * x.scale);
        }
    }
    static void finish(kb::Team, const kb::Launch&, int, const Ports&, Regs&, std::byte*) {}
};
