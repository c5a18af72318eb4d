// kda_state, the oracle, step by step as the definition says it: decay, prediction, rank-one update, readout. Double inside.
template <class Cfg>
struct Stage {
    struct Regs {};
    static constexpr int kPages = 0;
    static constexpr size_t kPageBytes = 0;
    static constexpr size_t kScratchBytes = size_t(Cfg::D) * Cfg::D * 8;  // the state of one head in double

    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void finish(kb::Team, const kb::Launch& run, int, const typename Cfg::Ports& p, Regs&, std::byte* scratch) {
        constexpr int D = Cfg::D;
        double* s = reinterpret_cast<double*>(scratch);
        const double b = 1.0 / (1.0 + std::exp(-double(p.beta[0])));
        for (int k = 0; k < D; ++k) {
            const double g = p.qkvg[size_t(3 * D + k)];
            const double softplus = g > 0.0 ? g + std::log1p(std::exp(-g)) : std::log1p(std::exp(g));
            for (int v = 0; v < D; ++v) s[k * D + v] = p.S[size_t(k * D + v)] * std::exp(-softplus);
        }
        for (int v = 0; v < D; ++v) {
            double pred = 0.0, o = 0.0;
            for (int k = 0; k < D; ++k) pred += s[k * D + v] * p.qkv[size_t(D + k)];
            const double delta = b * (p.qkv[size_t(2 * D + v)] - pred);
            for (int k = 0; k < D; ++k) {
                s[k * D + v] += p.qkv[size_t(D + k)] * delta;
                o += s[k * D + v] * p.qkv[size_t(k)];
                if (run.writer) p.S[size_t(k * D + v)] = float(s[k * D + v]);
            }
            p.o.put(size_t(v), float(o / std::sqrt(double(D))));
        }
    }
};
