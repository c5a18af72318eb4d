// topk, the oracle: softmax over E logits, the T largest (ties: lower index first), renormalised times 2.446.
template <class Cfg>
struct Stage {
    static_assert(Cfg::T <= Cfg::E, "topk cannot choose more experts than there are");
    struct Regs {};
    static constexpr int kPages = 0;
    static constexpr size_t kPageBytes = 0;
    static constexpr size_t kScratchBytes = 0;
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void finish(kb::Team, const kb::Launch&, int, const typename Cfg::Ports& p, Regs&, std::byte*) {
        // The order of probabilities is that of logits, without the ties that rounding of exp makes. A NaN counts as
        // -inf, so that the ids are T different experts whatever comes in.
        double logit[Cfg::E], top = -HUGE_VAL, all = 0.0, chosen = 0.0, e[Cfg::T];
        bool used[Cfg::E] = {};
        for (int i = 0; i < Cfg::E; ++i) {
            const float x = p.logits[size_t(i)];
            logit[i] = x == x ? double(x) : -HUGE_VAL;
            if (logit[i] > top) top = logit[i];
        }
        for (int i = 0; i < Cfg::E; ++i) all += std::exp(logit[i] - top);
        for (int t = 0; t < Cfg::T; ++t) {
            int best = -1;
            for (int i = 0; i < Cfg::E; ++i)
                if (!used[i] && (best < 0 || logit[i] > logit[best])) best = i;
            used[best] = true;
            p.ids.put(size_t(t), best);
            e[t] = std::exp(logit[best] - top) / all;
            chosen += e[t];
        }
        for (int t = 0; t < Cfg::T; ++t) p.w.put(size_t(t), float(e[t] / (chosen + 1e-9) * 2.446));
    }
};
