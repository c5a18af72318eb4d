// kda_state: memory sees the state of a head once in and once out.
// With S' = a*S the readout needs no second look at the new state: o = q.S' + (q.k) * delta, delta = b * (v - k.S').
// Pass 1 streams S and forms k.S' and q.S' (a folded into k and q); pass 2 finds S in L2 and writes a*S + k*delta.
// exp(-softplus(g)) is 1 / (1 + e^g): no logarithm, and stable for every g.
#if defined(__AVX512F__)
constexpr int kLanes = 16, kTile = 8;  // vectors of columns per tile: 2 * kTile accumulators stay in registers
#elif defined(__AVX__)
constexpr int kLanes = 8, kTile = 4;
#elif defined(__aarch64__)
constexpr int kLanes = 4, kTile = 8;
#else
constexpr int kLanes = 4, kTile = 4;
#endif
typedef float Lane __attribute__((vector_size(4 * kLanes)));

template <class Cfg>
struct Stage {
    static constexpr int D = Cfg::D, kWish = Cfg::COLS > 0 ? Cfg::COLS : kLanes * kTile;
    static constexpr int kColumns = kWish < D ? kWish : D, kVectors = kColumns / kLanes;
    static_assert(D % kColumns == 0 && kColumns % 16 == 0, "kda_state needs a head size that its column tile divides (128 does)");
    struct Regs {};
    static constexpr int kPages = 0;
    static constexpr size_t kPageBytes = 0;
    static constexpr size_t kScratchBytes = size_t(5 * D) * 4;

    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void finish(kb::Team, const kb::Launch& run, int, const typename Cfg::Ports& p, Regs&, std::byte* scratch) {
        float* a = reinterpret_cast<float*>(scratch);
        float *k = a + D, *ak = k + D, *aq = ak + D, *columns = aq + D;
        const float scale = 1.0f / std::sqrt(float(D));
        kb::f32x16 dot = {};
        for (int i = 0; i < D; i += 16) {
            const kb::f32x16 decay = 1.0f / (1.0f + kb::exp16(p.qkvg.v16(size_t(3 * D + i))));
            const kb::f32x16 q = p.qkv.v16(size_t(i)) * scale, key = p.qkv.v16(size_t(D + i));
            kb::store16(a + i, decay);
            kb::store16(k + i, key);
            kb::store16(ak + i, decay * key);
            kb::store16(aq + i, decay * q);
            dot += q * key;
        }
        const float qk = kb::sum16(dot), b = 1.0f / (1.0f + std::exp(-p.beta[0]));
        float* s = p.S.data(0, size_t(D) * D);
        for (int c = 0; c < D; c += kColumns) {
            Lane pred[kVectors] = {}, o[kVectors] = {};
            for (int row = 0; row < D; ++row) {
                const float* at = s + row * D + c;
#pragma GCC unroll 8
                for (int j = 0; j < kVectors; ++j) {
                    const Lane x = kb::load_bytes<Lane>(at + j * kLanes);
                    pred[j] += x * ak[row];
                    o[j] += x * aq[row];
                }
            }
            Lane delta[kVectors];
            for (int i = 0; i < kColumns; i += 16) kb::store16(columns + i, p.qkv.v16(size_t(2 * D + c + i)));
            for (int j = 0; j < kVectors; ++j) {
                delta[j] = (kb::load_bytes<Lane>(columns + j * kLanes) - pred[j]) * b;
                const Lane out = o[j] + delta[j] * qk;
                std::memcpy(columns + j * kLanes, &out, sizeof out);
            }
            for (int i = 0; i < kColumns; i += 16) p.o.put16(size_t(c + i), kb::load16(columns + i));
            if (!run.writer) continue;
            for (int row = 0; row < D; ++row) {
                float* at = s + row * D + c;
#pragma GCC unroll 8
                for (int j = 0; j < kVectors; ++j) {
                    const Lane x = kb::load_bytes<Lane>(at + j * kLanes) * a[row] + delta[j] * k[row];
                    std::memcpy(at + j * kLanes, &x, sizeof x);
                }
            }
        }
    }
};
