// emit, 16 lanes: hidden = bf16(h_in + sum(ys)), the one rounding of the residual stream in a step.
template <class Cfg>
struct Stage {
    static_assert(Cfg::C % 16 == 0, "emit works on 16 channels at a time: the hidden size must be a multiple of 16");
    struct Regs {};
    static constexpr int kPages = 0;
    static constexpr size_t kPageBytes = 0;
    static constexpr size_t kScratchBytes = 0;
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void finish(kb::Team, const kb::Launch& run, int, const typename Cfg::Ports& p, Regs&, std::byte*) {
        if (!run.writer) return;
        for (int i = 0; i < Cfg::C; i += 16) p.hidden.put16(size_t(i), p.h_in.v16(size_t(i)) + kb::sum_v16(p.ys, size_t(i)));
    }
};
