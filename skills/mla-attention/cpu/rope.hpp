// rope: the latent is copied, the key turned with rope_angles.hpp (no call into libm).
template <class Cfg>
struct Stage {
    static_assert(Cfg::LORA % 16 == 0, "rope copies 16 latent values at a time: kv_lora must be a multiple of 16");
    struct Regs {};
    static constexpr int kPages = 0;
    static constexpr size_t kPageBytes = 0;
    static constexpr size_t kScratchBytes = 0;
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void finish(kb::Team, const kb::Launch& run, int, const typename Cfg::Ports& p, Regs&, std::byte*) {
        for (int i = 0; i < Cfg::LORA; i += 16) p.latent.put16(size_t(i), p.kva.v16(size_t(i)));
        float c[RopeTable<Cfg::ROPE>::kPadded], s[RopeTable<Cfg::ROPE>::kPadded];
        rope_angles<Cfg::ROPE>(run.position, c, s);
        for (int j = 0; j < Cfg::ROPE / 2; ++j) {
            const float a = p.kva[size_t(Cfg::LORA + 2 * j)], b = p.kva[size_t(Cfg::LORA + 2 * j + 1)];
            p.kr.put(size_t(2 * j), a * c[j] - b * s[j]);
            p.kr.put(size_t(2 * j + 1), a * s[j] + b * c[j]);
        }
    }
};
