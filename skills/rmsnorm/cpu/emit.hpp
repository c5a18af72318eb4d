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
        for (size_t i = 0; i < size_t(Cfg::C); i += 16) p.hidden.put16(i, p.h_in.v16(i) + kb::sum_v16(p.ys, i));
    }
};
