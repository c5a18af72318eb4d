// absorb, the oracle: qa[r] = sum_d q[d] w[r,d] as plain float loops over the canonical order; qr = RoPE of q's tail.
template <class C>
struct Stage {
    using Ports = typename C::Ports;
    using Page = PlainPage<C::LORA, C::NOPE, 1>;
    struct Regs {};
    static constexpr int kPages = 1;
    static constexpr size_t kPageBytes = Page::kBytes;
    static constexpr size_t kScratchBytes = 0;

    static const char* pack(const kb::Unit& u, std::byte* dst) { return Page::pack(u, dst); }
    static void unpack(const std::byte* unit, float* w) { Page::unpack(unit, w); }
    static void begin(kb::Team, const kb::Launch& run, int, const Ports& p, Regs&, std::byte*) {
        for (int j = 0; j < C::ROPE / 2; ++j) {
            const double angle = double(run.position) * std::pow(10000.0, -2.0 * j / C::ROPE);
            const float cos = float(std::cos(angle)), sin = float(std::sin(angle));
            const float a = p.q[size_t(C::NOPE + 2 * j)], b = p.q[size_t(C::NOPE + 2 * j + 1)];
            p.qr.put(size_t(2 * j), a * cos - b * sin);
            p.qr.put(size_t(2 * j + 1), a * sin + b * cos);
        }
    }
    static void consume(kb::Team, const kb::Launch&, int, int, const std::byte* data, const Ports& p, Regs&, std::byte*) {
        for (int r = 0; r < C::LORA; ++r) {
            float sum = 0.0f;
            for (int d = 0; d < C::NOPE; ++d) sum += float(p.q[size_t(d)]) * Page::at(data, r, d);
            p.qa.put(size_t(r), sum);
        }
    }
    static void finish(kb::Team, const kb::Launch&, int, const Ports&, Regs&, std::byte*) {}
};
