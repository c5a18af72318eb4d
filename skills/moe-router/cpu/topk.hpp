// topk by counting: the rank of an expert is how many stand before it (a larger logit, or an equal one with a lower index).
// E*E/16 compares without a branch or a horizontal step, instead of T dependent argmax passes.
template <class Cfg>
struct Stage {
    static_assert(Cfg::T <= Cfg::E, "topk cannot choose more experts than there are");
    static constexpr int kVectors = (Cfg::E + 15) / 16;
    struct Regs {};
    static constexpr int kPages = 0;
    static constexpr size_t kPageBytes = 0;
    static constexpr size_t kScratchBytes = 0;
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void finish(kb::Team, const kb::Launch&, int, const typename Cfg::Ports& p, Regs&, std::byte*) {
        alignas(64) float logit[16 * kVectors];
        float top = -HUGE_VALF;
        for (int i = 0; i < 16 * kVectors; ++i) {
            // A NaN counts as -inf: ranks then are a permutation whatever comes in, and ids are T different experts.
            const float x = i < Cfg::E ? p.logits[size_t(i)] : -HUGE_VALF;
            logit[i] = x == x ? x : -HUGE_VALF;
            top = logit[i] > top ? logit[i] : top;
        }
        // Plain loops: every compiler makes compares and adds of whole vectors of them, whatever the width.
        alignas(64) int32_t rank[16 * kVectors] = {};
        for (int j = 0; j < Cfg::E; ++j)
            for (int i = 0; i < 16 * kVectors; ++i) rank[i] += int(logit[j] > logit[i]) | (int(logit[j] == logit[i]) & int(j < i));
        alignas(64) float e[16 * kVectors];
        float all = 0.0f;
        for (int i = 0; i < 16 * kVectors; i += 16) kb::store16(e + i, kb::exp16(kb::load16(logit + i) - top));
        for (int i = 0; i < Cfg::E; ++i) all += e[i];
        all = 1.0f / all;
        float w[Cfg::T], chosen = 0.0f;
        for (int i = 0; i < Cfg::E; ++i)
            if (rank[i] < Cfg::T) {
                p.ids.put(size_t(rank[i]), i);
                w[rank[i]] = e[i] * all;
            }
        for (int t = 0; t < Cfg::T; ++t) chosen += w[t];
        const float scale = 2.446f / (chosen + 1e-9f);
        for (int t = 0; t < Cfg::T; ++t) p.w.put(size_t(t), w[t] * scale);
    }
};
