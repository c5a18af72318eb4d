// expert_up, the plain way: act[j] = silu(g_j) * u_j. A whole x is copied to floats once per block and step, a box per item.
template <class C>
struct Stage : GateUp<C, C::TILES> {
    using Ports = typename C::Ports;
    using Packed = GateUp<C, C::TILES>;
    using Matrix = typename Packed::Matrix;
    using Image = Floats<C::K>;
    struct Regs {};
    static constexpr size_t kScratchBytes = sizeof(Image);
    static Image& image(std::byte* scratch) { return *reinterpret_cast<Image*>(scratch); }

    static void enter(kb::Team, const kb::Launch&, const Ports& p, std::byte* scratch) {
        if constexpr (C::WHOLE_X) image(scratch).fill(p.x);
    }
    static void begin(kb::Team, const kb::Launch&, int, const Ports& p, Regs&, std::byte* scratch) {
        if constexpr (!C::WHOLE_X) image(scratch).fill(p.x);
    }
    static KB_INLINE void consume(kb::Team, const kb::Launch&, int, int page, const std::byte* data, const Ports& p, Regs&, std::byte* scratch) {
        kb::f32x16 y[Packed::kTiles];
        multiply_widened<Matrix, C::SUMS>(data, image(scratch), y);
        Packed::put(p.act, page, y);
    }
    static void finish(kb::Team, const kb::Launch&, int, const Ports&, Regs&, std::byte*) {}
};
