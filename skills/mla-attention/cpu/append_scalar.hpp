// append, the oracle: rounds the new latent and rope key to bf16 into the cache row that the views show.
template <class Cfg>
struct Stage {
    struct Regs {};
    static constexpr int kPages = 0;
    static constexpr size_t kPageBytes = 0;
    static constexpr size_t kScratchBytes = 0;
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void finish(kb::Team, const kb::Launch& run, int, const typename Cfg::Ports& p, Regs&, std::byte*) {
        if (!run.writer) return;
        for (int i = 0; i < Cfg::LORA; ++i) p.c_kv[size_t(i)] = kb::to_bf16(p.latent[size_t(i)]);
        for (int i = 0; i < Cfg::ROPE; ++i) p.k_rope[size_t(i)] = kb::to_bf16(p.kr[size_t(i)]);
    }
};
