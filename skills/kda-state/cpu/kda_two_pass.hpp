// kda_state in the order of the definition, COLS columns of a head at a time. Pass 1: S' = a*S, kept in scratch, and k.S'.
// Pass 2: S = S' + k*delta, written back, and q.S. The tile between the passes takes D * COLS floats of L1 or L2.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Lane __attribute__((vector_size(4 * kLanes)));

template <class Cfg>
struct Stage {
    static constexpr int D = Cfg::D, kColumns = Cfg::COLS < D ? Cfg::COLS : D, kVectors = kColumns / kLanes;
    static_assert(D % kColumns == 0 && kColumns % 16 == 0, "kda_state needs a head size that COLS divides, and COLS a multiple of 16");
    struct Regs {};
    static constexpr int kPages = 0;
    static constexpr size_t kPageBytes = 0;
    static constexpr size_t kScratchBytes = (size_t(3 * D) + kColumns + size_t(D) * kColumns) * 4;

    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void finish(kb::Team, const kb::Launch& run, int, const typename Cfg::Ports& p, Regs&, std::byte* scratch) {
        float* a = reinterpret_cast<float*>(scratch);
        float *k = a + D, *q = k + D, *columns = q + D, *tile = columns + kColumns;
        const float scale = 1.0f / std::sqrt(float(D));
        for (int i = 0; i < D; i += 16) {
            kb::store16(a + i, 1.0f / (1.0f + kb::exp16(p.qkvg.v16(size_t(3 * D + i)))));  // exp(-softplus(g))
            kb::store16(k + i, p.qkv.v16(size_t(D + i)));
            kb::store16(q + i, p.qkv.v16(size_t(i)) * scale);
        }
        const float b = 1.0f / (1.0f + std::exp(-p.beta[0]));
        float* s = p.S.data(0, size_t(D) * D);
        for (int c = 0; c < D; c += kColumns) {
            Lane pred[kVectors] = {};
            for (int row = 0; row < D; ++row)
#pragma GCC unroll 8
                for (int j = 0; j < kVectors; ++j) {
                    const Lane x = kb::load_bytes<Lane>(s + row * D + c + j * kLanes) * a[row];
                    pred[j] += x * k[row];
                    std::memcpy(tile + row * kColumns + j * kLanes, &x, sizeof x);
                }
            for (int i = 0; i < kColumns; i += 16) kb::store16(columns + i, p.qkv.v16(size_t(2 * D + c + i)));
            Lane delta[kVectors], o[kVectors] = {};
            for (int j = 0; j < kVectors; ++j) delta[j] = (kb::load_bytes<Lane>(columns + j * kLanes) - pred[j]) * b;
            for (int row = 0; row < D; ++row)
#pragma GCC unroll 8
                for (int j = 0; j < kVectors; ++j) {
                    const Lane x = kb::load_bytes<Lane>(tile + row * kColumns + j * kLanes) + delta[j] * k[row];
                    o[j] += x * q[row];
                    if (run.writer) std::memcpy(s + row * D + c + j * kLanes, &x, sizeof x);
                }
            for (int j = 0; j < kVectors; ++j) std::memcpy(columns + j * kLanes, &o[j], sizeof o[j]);
            for (int i = 0; i < kColumns; i += 16) p.o.put16(size_t(c + i), kb::load16(columns + i));
        }
    }
};
