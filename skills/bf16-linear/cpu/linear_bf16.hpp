// linear_bf16: y[n] = sum_k x[k] * W[n,k]; a page is a few rows, interleaved 64 bytes at a time.
// Each 64 bytes hold 32 weights of one row as 16 words: low half w[k + j], high half w[k + 16 + j]. Widening is then one
// operation per 16 weights (shift or mask) instead of a zero-extension and a shift.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float LaneF __attribute__((vector_size(4 * kLanes)));
typedef uint32_t LaneU __attribute__((vector_size(4 * kLanes)));

template <class Cfg>
struct Stage {
    static_assert(Cfg::K % 32 == 0, "linear_bf16 works on 32 inputs at a time: K must be a multiple of 32");
    static constexpr int kRows = Cfg::N % 4 == 0 ? 4 : Cfg::N % 2 == 0 ? 2 : 1;  // rows per page: x is loaded once for all
    struct Regs {};
    static constexpr int kPages = Cfg::N / kRows;
    static constexpr size_t kPageBytes = size_t(kRows) * Cfg::K * 2;
    static constexpr size_t kScratchBytes = size_t(Cfg::K) * 4;

    static size_t place(int row, int k) {  // byte offset of one weight in its unit
        const int block = k / 32, j = k % 16, high = k % 32 / 16;
        return size_t(row / kRows) * kPageBytes + (size_t(block) * kRows + size_t(row % kRows)) * 64 + size_t(4 * j + 2 * high);
    }
    static const char* pack(const kb::Unit& u, std::byte* dst) {
        const kb::B16 b = u.b16(0);
        for (int n = 0; n < Cfg::N; ++n)
            for (int k = 0; k < Cfg::K; ++k)
                std::memcpy(dst + place(n, k),
                            reinterpret_cast<const std::byte*>(b.w) + (size_t(b.n0 + n) * size_t(b.cols) + size_t(k)) * 2, 2);
        return nullptr;
    }
    static void unpack(const std::byte* unit, float* w) {
        for (int n = 0; n < Cfg::N; ++n)
            for (int k = 0; k < Cfg::K; ++k)
                w[size_t(n) * Cfg::K + size_t(k)] = kb::to_float(kb::load_bytes<kb::bf16>(unit + place(n, k)));
    }
    // x may be a sum of copies: sum it once per step. (Items of one sharding all see the same whole x.)
    static void enter(kb::Team, const kb::Launch&, const typename Cfg::Ports& p, std::byte* scratch) {
        static_assert(Cfg::WHOLE_X, "linear_bf16 keeps all of x in scratch: give it the whole input");
        float* x = reinterpret_cast<float*>(scratch);
        for (int k = 0; k < Cfg::K; k += 16) kb::store16(x + k, p.x.v16(size_t(k)));
    }
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void consume(kb::Team, const kb::Launch&, int, int page, const std::byte* data, const typename Cfg::Ports& p, Regs&,
                        std::byte* scratch) {
        const float* x = reinterpret_cast<const float*>(scratch);
        LaneF low[kRows] = {}, high[kRows] = {};
        for (int k = 0; k < Cfg::K; k += 32)
            for (int lane = 0; lane < 16; lane += kLanes) {
                const LaneF x0 = kb::load_bytes<LaneF>(x + k + lane), x1 = kb::load_bytes<LaneF>(x + k + 16 + lane);
#pragma GCC unroll 4
                for (int r = 0; r < kRows; ++r) {
                    const LaneU w = kb::load_bytes<LaneU>(data + size_t(k / 32 * kRows + r) * 64 + size_t(4 * lane));
                    low[r] += x0 * kb::bitcast<LaneF>(w << 16);
                    high[r] += x1 * kb::bitcast<LaneF>(w & 0xffff0000u);
                }
            }
        for (int r = 0; r < kRows; ++r) {
            const LaneF both = low[r] + high[r];
            float sum = 0.0f;
            for (int j = 0; j < kLanes; ++j) sum += both[j];
            p.y.put(size_t(page * kRows + r), sum);
        }
    }
    static void finish(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
};
