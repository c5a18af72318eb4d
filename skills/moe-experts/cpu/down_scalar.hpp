// expert_down, the oracle: y[n] += w[slot] * sum_k x[k] w[k,n] as plain float loops over the canonical order.
template <class C>
struct Stage {
    using Ports = typename C::Ports;
    using Page = PlainPage<C::K, C::N, C::SEGMENTS>;
    struct Regs {};
    static constexpr int kPages = 1;
    static constexpr size_t kPageBytes = Page::kBytes;
    static constexpr size_t kScratchBytes = 0;

    static const char* pack(const kb::Unit& u, std::byte* dst) { return Page::pack(u, dst); }
    static void unpack(const std::byte* unit, float* w) { Page::unpack(unit, w); }
    static void begin(kb::Team, const kb::Launch&, int, const Ports&, Regs&, std::byte*) {}
    static void consume(kb::Team, const kb::Launch&, int item, int, const std::byte* data, const Ports& p, Regs&, std::byte*) {
        for (int n = 0; n < C::N; ++n) {
            float sum = 0.0f;
            for (int k = 0; k < C::K; ++k) sum += float(p.x[size_t(k)]) * Page::at(data, k, n);
            p.y.put(size_t(n), p.w[size_t(item / C::PERIOD)] * sum);
        }
    }
    static void finish(kb::Team, const kb::Launch&, int, const Ports&, Regs&, std::byte*) {}
};
