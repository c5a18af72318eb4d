// attend for 8, 16, 32 ... heads at once: lanes are heads, so scores need no horizontal sum and softmax no shuffle.
// Per block of kBlock cached rows: (1) widen the rows once for all heads into tile[column / 16][row][16] (columns in the
// order of `paired`) and form scores s[row][head] += q[column][head] * tile[row][column], one broadcast and one FMA per row,
// kRows rows in registers; (2) online softmax down the rows; (3) ctx[head][column] += p[row][head] * tile[row][column],
// lanes are columns.
template <class Cfg>
struct HeadLanes {
    static constexpr int G = Cfg::GROUP, LORA = Cfg::LORA, W = Cfg::LORA + Cfg::ROPE, kBlock = Cfg::BLOCK;
    static constexpr int L = G % kNative == 0 ? kNative : 8, NV = G / L;  // vectors of heads
    static constexpr int kRows = kRegisters == 32 ? (24 / NV > 0 ? 24 / NV : 1) : (12 / NV > 0 ? 12 / NV : 1);
    static constexpr int kHeads = kRegisters == 32 ? 8 : 4, kColumns = 2;  // register tile of step 3
    static constexpr int kWide = G < 16 ? 16 : G;  // m, l: 8 heads are held twice, for even and odd rows
    static_assert(W % 64 == 0 && G % 8 == 0 && (G == 8 || G % 16 == 0) && kBlock % kRows == 0 && LORA % 32 == 0 && Cfg::ROPE % 32 == 0);
    using F = typename Lanes<L>::F;
    using N = typename Lanes<kNative>::F;
    static constexpr int kChain = W % 192 == 0 ? 192 : W % 160 == 0 ? 160 : 64;  // products summed in one go: shorter chains round less
    static constexpr size_t kSteps = W / (2 * kNative);  // of the score loop; each prefetches kAhead bytes
    static constexpr size_t kAhead = (size_t(kRows) * LORA * 2 / kSteps + 63) / 64 * 64;
    static constexpr size_t kFloats = size_t(W) * G + size_t(kBlock) * W + size_t(kBlock) * G + size_t(G) * LORA + 3 * kWide;

    float *q, *tile, *s, *ctx, *m, *l, *corr;
    explicit HeadLanes(std::byte* scratch) {
        q = reinterpret_cast<float*>(scratch);
        tile = q + size_t(W) * G;
        s = tile + size_t(kBlock) * W;
        ctx = s + size_t(kBlock) * G;
        m = ctx + size_t(G) * LORA, l = m + kWide, corr = l + kWide;
    }
    static constexpr size_t at(int row, int column) { return size_t(column / 16 * kBlock + row) * 16 + size_t(column % 16); }

    // Queries with heads in lanes, scaled; the new row makes the first maximum, so no state is ever -inf.
    void start(const typename Cfg::Ports& p) {
        const float scale = 1.0f / std::sqrt(float(Cfg::QK));
        for (int h = 0; h < G; ++h)
            for (int c = 0; c < W; c += 16) {
                const kb::f32x16 v = scale * (c < LORA ? p.qa.v16(size_t(h * LORA + c)) : p.qr.v16(size_t(h * Cfg::ROPE + c - LORA)));
                for (int j = 0; j < 16; ++j) q[paired(c + j) * G + h] = v[j];
            }
        F acc[2][NV] = {};
        for (int c = 0; c < W; c += 16) {
            const kb::f32x16 x = c < LORA ? p.latent.v16(size_t(c)) : p.kr.v16(size_t(c - LORA));
            for (int j = 0; j < 16; ++j)
                for (int v = 0; v < NV; ++v) acc[j % 2][v] += load_f<L>(q + paired(c + j) * G + v * L) * x[j];
            if (c < LORA)
                for (int j = 0; j < 16; ++j) ctx[paired(c + j)] = x[j];
        }
        for (int h = 1; h < G; ++h) std::memcpy(ctx + h * LORA, ctx, sizeof(float) * LORA);
        for (int i = 0; i < kWide; ++i) {
            m[i] = acc[0][i % G / L][i % L] + acc[1][i % G / L][i % L];
            l[i] = i < G ? 1.0f : 0.0f;
        }
    }
    // Widens rows row..row + kRows - 1 of the block into the tile, 2 * kNative columns ahead of the FMAs that use them, and
    // forms their scores. `next`: bytes of the following block, touched a little at a time while the FMAs run.
    void scores(const typename Cfg::Ports& p, size_t first, int row, int rows, const char* next, const char* end) {
        const kb::bf16 *latent[kRows], *key[kRows];
        for (int r = 0; r < kRows; ++r) {  // past the end: the last row again, its score is not read
            const size_t from = first + size_t(row + r < rows ? row + r : rows - 1);
            latent[r] = p.c_kv.data(from * LORA, LORA);
            key[r] = p.k_rope.data(from * Cfg::ROPE, Cfg::ROPE);
        }
        for (int from = 0; from < W; from += kChain) {
            F acc[kRows][NV] = {};
            for (int c = from; c < from + kChain; c += 2 * kNative) {
                const bool is_key = c >= LORA;
#pragma GCC unroll 24
                for (int r = 0; r < kRows; ++r) {
                    N even, odd;
                    load_pairs<kNative>(is_key ? key[r] + c - LORA : latent[r] + c, even, odd);
                    store_f(tile + at(row + r, c), even);
                    store_f(tile + at(row + r, c + kNative), odd);
                }
                for (size_t b = 0; b < kAhead && next < end; b += 64, next += 64) __builtin_prefetch(next);
#pragma GCC unroll 2
                for (int j = 0; j < 2 * kNative; ++j) {
                    const float* t = tile + at(row, c + j);
                    F qv[NV];
                    for (int v = 0; v < NV; ++v) qv[v] = load_f<L>(q + (c + j) * G + v * L);
#pragma GCC unroll 24
                    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
                        for (int v = 0; v < NV; ++v) acc[r][v] += qv[v] * t[r * 16];
                }
            }
#pragma GCC unroll 24
            for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
                for (int v = 0; v < NV; ++v) {
                    float* to = s + (row + r) * G + v * L;
                    store_f(to, from == 0 ? acc[r][v] : load_f<L>(to) + acc[r][v]);
                }
        }
    }
    void softmax(int rows) {
        if (G == 8 && rows % 2)
            for (int h = 0; h < G; ++h) s[rows * G + h] = -HUGE_VALF;
        const int n = G == 8 ? (rows + 1) / 2 : rows;
        for (int v = 0; v < kWide; v += 16) {
            kb::f32x16 top = kb::load16(m + v);
            for (int r = 0; r < n; ++r) {
                const kb::f32x16 x = kb::load16(s + r * kWide + v);
                top = x > top ? x : top;
            }
            if (G == 8) {  // even and odd rows of the same heads
                float t[16];
                kb::store16(t, top);
                for (int h = 0; h < 8; ++h) t[h] = t[h + 8] = t[h] > t[h + 8] ? t[h] : t[h + 8];
                top = kb::load16(t);
            }
            const kb::f32x16 keep = kb::exp16(kb::load16(m + v) - top);
            kb::f32x16 sum = {};
            for (int r = 0; r < n; ++r) {
                const kb::f32x16 e = kb::exp16(kb::load16(s + r * kWide + v) - top);
                kb::store16(s + r * kWide + v, e);
                sum += e;
            }
            kb::store16(m + v, top);
            kb::store16(l + v, kb::load16(l + v) * keep + sum);
            kb::store16(corr + v, keep);
        }
    }
    void gather(int rows) {
        for (int c = 0; c < LORA; c += kColumns * kNative)
            for (int h = 0; h < G; h += kHeads) {
                N acc[kHeads][kColumns] = {};  // from zero: a chain over all rows would round sqrt(rows) times more
                const float *t0 = tile + at(0, c), *t1 = tile + at(0, c + kNative), *w = s + h;
                for (int r = 0; r < rows; ++r) {
                    const N x0 = load_f<kNative>(t0 + r * 16), x1 = load_f<kNative>(t1 + r * 16);
#pragma GCC unroll 8
                    for (int i = 0; i < kHeads; ++i) {
                        acc[i][0] += x0 * w[r * G + i];
                        acc[i][1] += x1 * w[r * G + i];
                    }
                }
#pragma GCC unroll 8
                for (int i = 0; i < kHeads; ++i)
#pragma GCC unroll 2
                    for (int j = 0; j < kColumns; ++j) {
                        float* to = ctx + (h + i) * LORA + c + j * kNative;
                        store_f(to, load_f<kNative>(to) * corr[h + i] + acc[i][j]);
                    }
            }
    }
    void run(const kb::Launch& launch, const typename Cfg::Ports& p) {
        start(p);
        const int position = int(launch.position);
        for (int first = 0; first < position; first += kBlock) {
            const int rows = position - first < kBlock ? position - first : kBlock;
            const int after = first + rows, ahead = position - after < kBlock ? position - after : kBlock;
            const char* next = reinterpret_cast<const char*>(p.c_kv.data(size_t(after) * LORA, size_t(ahead) * LORA));
            const char* end = next + size_t(ahead) * LORA * 2;
            for (int r = 0; r < rows; r += kRows, next += kAhead * kSteps) scores(p, size_t(first), r, rows, next, end);
            softmax(rows);
            gather(rows);
        }
        for (int h = 0; h < G; ++h) {
            const float scale = 1.0f / (G == 8 ? l[h] + l[h + 8] : l[h]);
            for (int c = 0; c < LORA; c += 16) {
                float in_order[16];
                for (int j = 0; j < 16; ++j) in_order[j] = ctx[h * LORA + paired(c + j)] * scale;
                p.ctx.put16(size_t(h * LORA + c), kb::load16(in_order));
            }
        }
    }
};
