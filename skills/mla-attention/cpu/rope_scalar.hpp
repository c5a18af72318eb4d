// rope, the oracle: splits kva into the latent and the rope key, and turns the key's pairs by position * 10000^(-2j/ROPE).
template <class Cfg>
struct Stage {
    struct Regs {};
    static constexpr int kPages = 0;
    static constexpr size_t kPageBytes = 0;
    static constexpr size_t kScratchBytes = 0;
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void finish(kb::Team, const kb::Launch& run, int, const typename Cfg::Ports& p, Regs&, std::byte*) {
        for (int i = 0; i < Cfg::LORA; ++i) p.latent.put(size_t(i), p.kva[size_t(i)]);
        for (int j = 0; j < Cfg::ROPE / 2; ++j) {
            const double angle = double(run.position) * std::pow(10000.0, -2.0 * j / Cfg::ROPE);
            const double c = std::cos(angle), s = std::sin(angle);
            const double a = p.kva[size_t(Cfg::LORA + 2 * j)], b = p.kva[size_t(Cfg::LORA + 2 * j + 1)];
            p.kr.put(size_t(2 * j), float(a * c - b * s));
            p.kr.put(size_t(2 * j + 1), float(a * s + b * c));
        }
    }
};
