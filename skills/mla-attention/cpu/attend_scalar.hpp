// attend, the oracle: for every head the textbook online softmax over the cached rows and the new row, in double.
// The new row comes from latent and kr as they are (fp32): the truth does not round it, only the cache does.
template <class Cfg>
struct Stage {
    struct Regs {};
    static constexpr int kPages = 0;
    static constexpr size_t kPageBytes = 0;
    static constexpr size_t kScratchBytes = size_t(Cfg::LORA) * 8;
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}

    template <class Row, class Key>
    static void add_row(const typename Cfg::Ports& p, int head, size_t row, const Row& latent, const Key& kr, double& top, double& sum,
                        double* ctx) {
        double score = 0.0;
        for (int i = 0; i < Cfg::LORA; ++i) score += double(p.qa[size_t(head * Cfg::LORA + i)]) * latent[row * Cfg::LORA + size_t(i)];
        for (int i = 0; i < Cfg::ROPE; ++i) score += double(p.qr[size_t(head * Cfg::ROPE + i)]) * kr[row * Cfg::ROPE + size_t(i)];
        score /= std::sqrt(double(Cfg::QK));
        const double next = score > top ? score : top, keep = std::exp(top - next), e = std::exp(score - next);
        for (int i = 0; i < Cfg::LORA; ++i) ctx[i] = ctx[i] * keep + e * latent[row * Cfg::LORA + size_t(i)];
        sum = sum * keep + e;
        top = next;
    }
    static void finish(kb::Team, const kb::Launch& run, int, const typename Cfg::Ports& p, Regs&, std::byte* scratch) {
        double* ctx = reinterpret_cast<double*>(scratch);
        for (int head = 0; head < Cfg::GROUP; ++head) {
            double top = -HUGE_VAL, sum = 0.0;
            for (int i = 0; i < Cfg::LORA; ++i) ctx[i] = 0.0;
            for (int64_t row = 0; row < run.position; ++row) add_row(p, head, size_t(row), p.c_kv, p.k_rope, top, sum, ctx);
            add_row(p, head, 0, p.latent, p.kr, top, sum, ctx);
            for (int i = 0; i < Cfg::LORA; ++i) p.ctx.put(size_t(head * Cfg::LORA + i), float(ctx[i] / sum));
        }
    }
};
