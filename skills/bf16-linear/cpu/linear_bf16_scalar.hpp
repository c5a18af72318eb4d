// linear_bf16, the oracle: y[n] = sum_k x[k] * W[n,k], rows as they stand, sums in double. One page per row.
template <class Cfg>
struct Stage {
    struct Regs {};
    static constexpr int kPages = Cfg::N;
    static constexpr size_t kPageBytes = size_t(Cfg::K) * 2;
    static constexpr size_t kScratchBytes = 0;

    static const char* pack(const kb::Unit& u, std::byte* dst) {
        const kb::B16 b = u.b16(0);
        std::memcpy(dst, reinterpret_cast<const std::byte*>(b.w) + size_t(b.n0) * size_t(b.cols) * 2, size_t(Cfg::N) * kPageBytes);
        return nullptr;
    }
    static void unpack(const std::byte* unit, float* w) {
        for (size_t i = 0; i < size_t(Cfg::N) * Cfg::K; ++i) w[i] = kb::to_float(kb::load_bytes<kb::bf16>(unit + 2 * i));
    }
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void consume(kb::Team, const kb::Launch&, int, int page, const std::byte* data, const typename Cfg::Ports& p, Regs&,
                        std::byte*) {
        double sum = 0.0;
        for (int k = 0; k < Cfg::K; ++k) sum += double(p.x[k]) * kb::to_float(kb::load_bytes<kb::bf16>(data + 2 * k));
        p.y.put(page, float(sum));
    }
    static void finish(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
};
