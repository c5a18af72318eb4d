// add_norm, 16 lanes: one pass sums the residual, writes h, keeps it in scratch and squares it; the weight page ends it.
// The residual stays in L1 (9 KB at hidden 2304), so a partial `y` with many copies is summed once, not twice.
template <class Cfg>
struct Stage {
    static_assert(Cfg::C % 64 == 0, "add_norm works on 64 channels at a time: the hidden size must be a multiple of 64");
    struct Regs {
        float scale;  // 1 / rms
    };
    static constexpr int kPages = 1;
    static constexpr size_t kPageBytes = size_t(Cfg::C) * 2;
    static constexpr size_t kScratchBytes = size_t(Cfg::C) * 4;

    static const char* pack(const kb::Unit& u, std::byte* dst) {
        std::memcpy(dst, u.b16(0).w, size_t(Cfg::C) * 2);
        return nullptr;
    }
    static void unpack(const std::byte* unit, float* w) {
        for (int i = 0; i < Cfg::C; ++i) w[i] = kb::to_float(kb::load_bytes<kb::bf16>(unit + 2 * i));
    }
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports& p, Regs& regs, std::byte* scratch) {
        float* kept = reinterpret_cast<float*>(scratch);
        kb::f32x16 squares[4] = {};  // four chains hide the latency of the adds
        for (int i = 0; i < Cfg::C; i += 64)
            for (int j = 0; j < 4; ++j) {
                const size_t at = size_t(i + 16 * j);
                const kb::f32x16 h = p.h_in.v16(at) + kb::sum_v16(p.ys, at);
                p.h.put16(at, h);
                kb::store16(kept + at, h);
                squares[j] += h * h;
            }
        const float sum = kb::sum16((squares[0] + squares[1]) + (squares[2] + squares[3]));
        regs.scale = 1.0f / std::sqrt(sum / float(Cfg::C) + 1e-6f);
    }
    static void consume(kb::Team, const kb::Launch&, int, int, const std::byte* data, const typename Cfg::Ports& p, Regs& regs,
                        std::byte* scratch) {
        const float* kept = reinterpret_cast<const float*>(scratch);
        const kb::bf16* weight = reinterpret_cast<const kb::bf16*>(data);
        const kb::f32x16 scale = kb::splat(regs.scale);
        for (int i = 0; i < Cfg::C; i += 16) p.x.put16(size_t(i), kb::load16(kept + i) * scale * kb::load16(weight + i));
    }
    static void finish(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
};
