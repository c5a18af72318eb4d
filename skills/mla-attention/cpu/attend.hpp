// attend: flash-decode over the cached rows for a group of heads; how lanes are used depends on the group.
template <class Cfg>
struct Stage {
    using Path = std::conditional_t<Cfg::GROUP % 8 == 0, HeadLanes<Cfg>, ColumnLanes<Cfg>>;
    struct Regs {};
    static constexpr int kPages = 0;
    static constexpr size_t kPageBytes = 0;
    static constexpr size_t kScratchBytes = (Path::kFloats * 4 + 63) / 64 * 64;
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void finish(kb::Team, const kb::Launch& run, int, const typename Cfg::Ports& p, Regs&, std::byte* scratch) {
        Path(scratch).run(run, p);
    }
};
