// attend for 1, 2 or 4 heads at once: lanes are columns, rows are widened in registers (too few heads to pay for a tile).
// kNative dot products run side by side, (4 rows x 4 heads, 16 rows x 1 head, ...), and are summed together by a butterfly.
template <int L, int Step>
KB_INLINE void fold(typename Lanes<L>::F* a) {  // a[i] and a[i + Step] into one vector, lane groups of Step
    using I = typename Lanes<L>::I;
    I low{}, high{};
    for (int j = 0; j < L; ++j) {
        const int group = j / (2 * Step), within = j % (2 * Step);
        const int from = within < Step ? group * 2 * Step + within : L + group * 2 * Step + within - Step;
        low[j] = from;
        high[j] = from + Step;
    }
#pragma GCC unroll 8
    for (int i = 0; i < Step; ++i) a[i] = __builtin_shuffle(a[i], a[i + Step], low) + __builtin_shuffle(a[i], a[i + Step], high);
    if constexpr (Step > 1) fold<L, Step / 2>(a);
}

template <class Cfg>
struct ColumnLanes {
    static constexpr int G = Cfg::GROUP, LORA = Cfg::LORA, ROPE = Cfg::ROPE, L = kNative, kBlock = Cfg::BLOCK / 16 * 16;
    static constexpr int kPitch = (kBlock + 31) / 16 * 16;  // scores of a head: rows are filled up to 16, tiles may overhang
    static constexpr int kRows = L / G;  // kRows * G accumulators
    static constexpr int kFit = kRegisters / 2 / G, kColumns = kFit * L <= LORA ? kFit : LORA / L;
    static_assert((G == 1 || G == 2 || G == 4) && kColumns % 2 == 0 && LORA % (kColumns * L) == 0 && ROPE % (2 * L) == 0);
    using F = typename Lanes<L>::F;
    static constexpr size_t kFloats = size_t(G) * (LORA + ROPE) + size_t(G) * kPitch + size_t(G) * LORA;

    float *qa, *qr, *s, *ctx;
    float m[G], l[G];
    explicit ColumnLanes(std::byte* scratch) {
        qa = reinterpret_cast<float*>(scratch);
        qr = qa + G * LORA, s = qr + G * ROPE, ctx = s + G * kPitch;
    }
    void start(const typename Cfg::Ports& p) {
        const float scale = 1.0f / std::sqrt(float(Cfg::QK));
        for (int h = 0; h < G; ++h) {
            kb::f32x16 dot = {};
            for (int c = 0; c < LORA; c += 16) {
                const kb::f32x16 v = p.qa.v16(size_t(h * LORA + c)) * scale, x = p.latent.v16(size_t(c));
                for (int j = 0; j < 16; ++j) {
                    qa[h * LORA + paired(c + j)] = v[j];
                    ctx[h * LORA + paired(c + j)] = x[j];
                }
                dot += v * x;
            }
            for (int c = 0; c < ROPE; c += 16) {
                const kb::f32x16 v = p.qr.v16(size_t(h * ROPE + c)) * scale;
                for (int j = 0; j < 16; ++j) qr[h * ROPE + paired(c + j)] = v[j];
                dot += v * p.kr.v16(size_t(c));
            }
            m[h] = kb::sum16(dot);
            l[h] = 1.0f;
        }
    }
    template <int Width>
    KB_INLINE static void dots(F* acc, const kb::bf16* const* rows, const float* q) {
        for (int c = 0; c < Width; c += 2 * L)
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) {
                F even, odd;
                load_pairs<L>(rows[r] + c, even, odd);
#pragma GCC unroll 4
                for (int h = 0; h < G; ++h) {
                    acc[h * kRows + r] += even * load_f<L>(q + h * Width + c);
                    acc[h * kRows + r] += odd * load_f<L>(q + h * Width + c + L);
                }
            }
    }
    void scores(const typename Cfg::Ports& p, int first, int rows) {
        for (int r0 = 0; r0 < rows; r0 += kRows) {
            const kb::bf16 *latent[kRows], *key[kRows];
            for (int r = 0; r < kRows; ++r) {  // past the end: the last row again, its score is not read
                const size_t row = size_t(first + (r0 + r < rows ? r0 + r : rows - 1));
                latent[r] = p.c_kv.data(row * LORA, LORA);
                key[r] = p.k_rope.data(row * ROPE, ROPE);
            }
            F acc[L] = {};
            dots<LORA>(acc, latent, qa);
            dots<ROPE>(acc, key, qr);
            fold<L, L / 2>(acc);
            for (int h = 0; h < G; ++h)
                for (int r = 0; r < kRows; ++r) s[h * kPitch + r0 + r] = acc[0][h * kRows + r];
        }
    }
    float softmax(int h, int rows) {  // returns what the sums so far are worth under the new maximum
        float* x = s + h * kPitch;
        float top = m[h];
        for (int r = 0; r < rows; ++r) top = x[r] > top ? x[r] : top;
        const float keep = std::exp(m[h] - top);
        kb::f32x16 sum = {};
        for (int r = rows; r % 16; ++r) x[r] = -HUGE_VALF;
        for (int r = 0; r < rows; r += 16) {
            const kb::f32x16 e = kb::exp16(kb::load16(x + r) - top);
            kb::store16(x + r, e);
            sum += e;
        }
        m[h] = top;
        l[h] = l[h] * keep + kb::sum16(sum);
        return keep;
    }
    void gather(const kb::bf16* c_kv, int rows, const float* keep) {
        for (int c = 0; c < LORA; c += kColumns * L) {
            F acc[G][kColumns] = {};
            for (int r = 0; r < rows; ++r)
#pragma GCC unroll 16
                for (int j = 0; j < kColumns; j += 2) {
                    F even, odd;
                    load_pairs<L>(c_kv + size_t(r) * LORA + c + j * L, even, odd);
#pragma GCC unroll 4
                    for (int h = 0; h < G; ++h) {
                        acc[h][j] += even * s[h * kPitch + r];
                        acc[h][j + 1] += odd * s[h * kPitch + r];
                    }
                }
#pragma GCC unroll 4
            for (int h = 0; h < G; ++h)
#pragma GCC unroll 16
                for (int j = 0; j < kColumns; ++j) {
                    float* to = ctx + h * LORA + c + j * L;
                    store_f(to, load_f<L>(to) * keep[h] + acc[h][j]);
                }
        }
    }
    void run(const kb::Launch& launch, const typename Cfg::Ports& p) {
        start(p);
        const int position = int(launch.position);
        for (int first = 0; first < position; first += kBlock) {
            const int rows = position - first < kBlock ? position - first : kBlock;
            scores(p, first, rows);
            float keep[G];
            for (int h = 0; h < G; ++h) keep[h] = softmax(h, rows);
            gather(p.c_kv.data(size_t(first) * LORA, size_t(rows) * LORA), rows, keep);
        }
        for (int h = 0; h < G; ++h)
            for (int c = 0; c < LORA; c += 16) {
                float in_order[16];
                for (int j = 0; j < 16; ++j) in_order[j] = ctx[h * LORA + paired(c + j)] / l[h];
                p.ctx.put16(size_t(h * LORA + c), kb::load16(in_order));
            }
    }
};
