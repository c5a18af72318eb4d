// add_norm, the oracle: h = h_in + sum(ys); x = h / sqrt(mean(h^2) + 1e-6) * weight. Sums in double.
template <class Cfg>
struct Stage {
    struct Regs {};
    static constexpr int kPages = 1;
    static constexpr size_t kPageBytes = size_t(Cfg::C) * 2;
    static constexpr size_t kScratchBytes = 0;

    static const char* pack(const kb::Unit& u, std::byte* dst) {
        std::memcpy(dst, u.b16(0).w, size_t(Cfg::C) * 2);
        return nullptr;
    }
    static void unpack(const std::byte* unit, float* w) {
        for (int i = 0; i < Cfg::C; ++i) w[i] = kb::to_float(kb::load_bytes<kb::bf16>(unit + 2 * i));
    }
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void consume(kb::Team, const kb::Launch&, int, int, const std::byte* data, const typename Cfg::Ports& p, Regs&,
                        std::byte*) {
        double squares = 0.0;
        for (int i = 0; i < Cfg::C; ++i) {
            const float h = p.h_in[i] + kb::sum_at(p.ys, i);
            p.h.put(i, h);
            squares += double(h) * h;
        }
        const double scale = 1.0 / std::sqrt(squares / Cfg::C + 1e-6);
        for (int i = 0; i < Cfg::C; ++i) {
            const float h = p.h_in[i] + kb::sum_at(p.ys, i);  // summed again: outputs are write-only
            p.x.put(i, float(h * scale * kb::to_float(kb::load_bytes<kb::bf16>(data + 2 * i))));
        }
    }
    static void finish(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
};
