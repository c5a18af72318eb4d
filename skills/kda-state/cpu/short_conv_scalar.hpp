// short_conv, the oracle: depthwise causal convolution of 4 taps and SiLU on q, k, v of one head; the window shifts by one.
template <class Cfg>
struct Stage {
    struct Regs {};
    static constexpr int kPages = 1;
    static constexpr size_t kPageBytes = size_t(3 * 4 * 2) * Cfg::D;
    static constexpr size_t kScratchBytes = 0;

    static const char* pack(const kb::Unit& u, std::byte* dst) {  // canonical [3, CH, 4]: this head's channels, as they stand
        const std::byte* raw = reinterpret_cast<const std::byte*>(u.raw(0));
        for (size_t m = 0; m < 3; ++m)
            std::memcpy(dst + m * Cfg::D * 8, raw + (m * Cfg::CH + size_t(u.local()) * Cfg::D) * 8, size_t(Cfg::D) * 8);
        return nullptr;
    }
    static void unpack(const std::byte* unit, float* w) {
        for (int i = 0; i < 12 * Cfg::D; ++i) w[i] = kb::to_float(kb::load_bytes<kb::bf16>(unit + 2 * i));
    }
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void consume(kb::Team, const kb::Launch& run, int, int, const std::byte* data, const typename Cfg::Ports& p, Regs&,
                        std::byte*) {
        const kb::State<kb::bf16> windows[3] = {p.cq, p.ck, p.cv};
        for (int m = 0; m < 3; ++m)
            for (int d = 0; d < Cfg::D; ++d) {
                const float fresh = p.y[size_t(m * Cfg::D + d)];
                double sum = 0.0;
                for (int t = 0; t < 4; ++t) {
                    const float w = kb::to_float(kb::load_bytes<kb::bf16>(data + ((m * Cfg::D + d) * 4 + t) * 2));
                    sum += double(w) * (t < 3 ? kb::to_float(windows[m][size_t(t) * Cfg::CH + size_t(d)]) : fresh);
                }
                p.qkv.put(size_t(m * Cfg::D + d), float(sum / (1.0 + std::exp(-sum))));
                if (!run.writer) continue;
                for (int t = 0; t < 2; ++t)
                    windows[m][size_t(t) * Cfg::CH + size_t(d)] = windows[m][size_t(t + 1) * Cfg::CH + size_t(d)];
                windows[m][size_t(2) * Cfg::CH + size_t(d)] = kb::to_bf16(fresh);
            }
    }
    static void finish(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
};
