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
        kb::i32x16 rank[kVectors] = {};  // minus the rank: true compares are -1
        kb::f32x16 sum = {};
        kb::i32x16 lane;
        for (int j = 0; j < 16; ++j) lane[j] = j;
        alignas(64) float e[16 * kVectors];
        for (int v = 0; v < kVectors; ++v) {
            const kb::f32x16 x = kb::load16(logit + 16 * v);
            const kb::f32x16 ex = kb::exp16(x - top);
            kb::store16(e + 16 * v, ex);
            sum += lane + 16 * v < Cfg::E ? ex : kb::splat(0.0f);
            for (int w = 0; w < kVectors; ++w)
                for (int j = 0; j < 16; ++j) {
                    const kb::f32x16 other = kb::splat(logit[16 * w + j]);
                    if (w < v) rank[v] += other >= x;  // lower index: stands before on a tie
                    else if (w > v) rank[v] += other > x;
                    else rank[v] += (other > x) | ((other == x) & (lane > j));
                }
        }
        alignas(64) int32_t place[16 * kVectors];
        std::memcpy(place, rank, sizeof place);
        float w[Cfg::T], chosen = 0.0f;
        const float all = 1.0f / kb::sum16(sum);
        for (int i = 0; i < Cfg::E; ++i)
            if (-place[i] < Cfg::T) {
                p.ids.put(size_t(-place[i]), i);
                w[-place[i]] = e[i] * all;
            }
        for (int t = 0; t < Cfg::T; ++t) chosen += w[t];
        const float scale = 2.446f / (chosen + 1e-9f);
        for (int t = 0; t < Cfg::T; ++t) p.w.put(size_t(t), w[t] * scale);
    }
};
