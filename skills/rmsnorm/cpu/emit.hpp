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
        for (int i = 0; i < Cfg::C; i += 16) {
            float sum[16];  // rounded in a plain loop, which compilers turn into vector code; put16 of bf16 takes lanes one by one
            kb::store16(sum, p.h_in.v16(size_t(i)) + kb::sum_v16(p.ys, size_t(i)));
            for (int j = 0; j < 16; ++j) p.hidden.put(size_t(i + j), kb::to_bf16(sum[j]));
        }
    }
};
