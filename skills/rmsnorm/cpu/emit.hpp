// emit: hidden = bf16(h_in + sum(ys)), the one rounding of the residual stream in a step.
template <class Cfg>
struct Stage {
    struct Regs {};
    static constexpr int kPages = 0;
    static constexpr size_t kPageBytes = 0;
    static constexpr size_t kScratchBytes = 0;
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void finish(kb::Team, const kb::Launch& run, int, const typename Cfg::Ports& p, Regs&, std::byte*) {
        if (!run.writer) return;
        // A plain loop on purpose: compilers make vector code of it for every target, rounding included, while put16 of a
        // bf16 port takes its lanes one by one (7 times slower).
        for (size_t i = 0; i < size_t(Cfg::C); ++i) p.hidden.put(i, kb::to_bf16(p.h_in[i] + kb::sum_at(p.ys, i)));
    }
};
