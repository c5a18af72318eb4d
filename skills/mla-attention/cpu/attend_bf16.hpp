// attend with bf16 dot products: the cached rows are read as they stand, never widened. Rounded are the queries (LEVELS 1;
// with 2 a second bf16 carries the rest) and the weights exp(score - top) (PLEVELS likewise); sums are fp32.
// Scores: lanes are heads, each with kSplit partial sums if the group is smaller than a vector; a step multiplies kSplit
// column pairs of one row, repeated for every head, by the queries. Context: lanes are columns, one step takes two rows that
// lie kPass apart, woven in registers and used for up to 8 heads.
template <class Cfg>
struct PairHeads {
    static constexpr int G = Cfg::GROUP, LORA = Cfg::LORA, ROPE = Cfg::ROPE, W = LORA + ROPE, L = kNative;
    static constexpr int kLevels = Cfg::LEVELS, kWeights = Cfg::PLEVELS, kBlock = Cfg::BLOCK, kChunk = 32;
    static constexpr int kSplit = G < L ? L / G : 1, NV = G < L ? 1 : G / L;
    static constexpr int kSums = kRegisters / 2;  // accumulators
    static constexpr int kPass = kSums / NV > 0 ? kSums / NV : 1;  // rows of one score pass
    static constexpr int kHeads = G < kSums / 2 ? G : kSums / 2, kFit = kSums / kHeads;
    static constexpr int kVectors = kFit * L <= LORA ? kFit : LORA / L;  // of columns, in the context step
    static constexpr int kWide = G < 16 ? 16 : G;  // m, l, corr: lane i belongs to head i % G
    static_assert((G & (G - 1)) == 0 && LORA % (kVectors * L) == 0 && LORA % 32 == 0 && ROPE % 32 == 0 && kVectors % 2 == 0);
    static_assert(kBlock % kChunk == 0 && kChunk % (2 * kPass) == 0 && kPass % kSplit == 0);
    static_assert(kLevels >= 1 && kLevels <= 2 && kWeights >= 1 && kWeights <= 2);
    using F = typename Lanes<L>::F;
    using U = PairLanes<L>;
    static constexpr size_t kQueries = size_t(kLevels) * G * W * 2, kScores = size_t(kBlock / 2) * G * 4;
    static constexpr size_t kBytes = kQueries + 2 * kScores + size_t(G * LORA + 3 * kWide) * 4 + size_t(kChunk) * W * 2;

    // Rows are read in columns here, 16 streams side by side, which no hardware prefetcher follows: so lines of later rows are
    // asked into L2 in their order, a little at a time while this block is computed, at most AHEAD rows past it.
    // Asking too slowly is as bad as not asking: two lines a step where 10 lines stand against 9 steps.
    static constexpr int kAhead = Cfg::AHEAD, kRowLines = W / 32;
    static constexpr int kSteps = kBlock / kPass * (W / (2 * kSplit)) + kBlock / 2 * (LORA / (kVectors * L)) * (G / kHeads);
    static constexpr int kTouch = (kBlock * kRowLines + kSteps - 1) / kSteps;
    const char *ahead_latent = nullptr, *ahead_key = nullptr;
    int ahead_rows = 0, ahead_line = 0;  // rows that may still be asked for, next line of the first of them
    KB_INLINE void touch() {
        for (int i = 0; i < kTouch; ++i) {
            if (ahead_rows == 0) return;
            const int line = ahead_line++;
            __builtin_prefetch(line < LORA / 32 ? ahead_latent + line * 64 : ahead_key + (line - LORA / 32) * 64, 0, 2);
            if (ahead_line == kRowLines) --ahead_rows, ahead_line = 0, ahead_latent += LORA * 2, ahead_key += ROPE * 2;
        }
    }

    std::byte* q;          // [level][step][NV * L] pairs
    float *early, *late;   // [pair of rows][head]: scores of the first and of the second row; then weights as pairs, and their rest
    float *ctx, *m, *l, *corr;
    kb::bf16 *tail, *tail_key;  // rows of the last, unfilled chunk; zeros behind them
    explicit PairHeads(std::byte* scratch) {
        q = scratch;
        early = reinterpret_cast<float*>(q + kQueries), late = early + kBlock / 2 * G;
        ctx = late + kBlock / 2 * G;
        m = ctx + G * LORA, l = m + kWide, corr = l + kWide;
        tail = reinterpret_cast<kb::bf16*>(corr + kWide), tail_key = tail + kChunk * LORA;
    }
    // Queries to pairs; the new row (fp32, not rounded) makes the first maximum, so no state is ever -inf.
    void start(const typename Cfg::Ports& p) {
        kb::bf16* rounded = tail;  // free until the last rows are copied
        for (int h = 0; h < G; ++h) {
            kb::f32x16 dot = {};
            for (int c = 0; c < W; c += 16) {
                kb::f32x16 v = c < LORA ? p.qa.v16(size_t(h * LORA + c)) : p.qr.v16(size_t(h * ROPE + c - LORA));
                dot += v * (c < LORA ? p.latent.v16(size_t(c)) : p.kr.v16(size_t(c - LORA)));
                for (int level = 0; level < kLevels; ++level) {
                    kb::store16(rounded + level * W + c, v);
                    v -= kb::load16(rounded + level * W + c);
                }
            }
            for (int level = 0; level < kLevels; ++level)
                for (int c = 0; c < W; c += 2 * kSplit)
                    std::memcpy(q + (size_t(level * W + c) * G + size_t(h * 2 * kSplit)) * 2, rounded + level * W + c, kSplit * 4);
            for (int i = h; i < kWide; i += G) m[i] = kb::sum16(dot), l[i] = i < G ? 1.0f : 0.0f;
        }
        for (int c = 0; c < LORA; c += 16) {
            const kb::f32x16 x = p.latent.v16(size_t(c));
            for (int j = 0; j < 16; ++j) ctx[woven<L>(c + j)] = x[j];
        }
        for (int h = 1; h < G; ++h) std::memcpy(ctx + h * LORA, ctx, sizeof(float) * LORA);
    }
    template <int Width>
    KB_INLINE void dots(F (*acc)[NV], const kb::bf16* rows, const std::byte* queries) {
        for (int c = 0; c < Width; c += 2 * kSplit) {
            touch();
            U query[kLevels][NV];
#pragma GCC unroll 2
            for (int level = 0; level < kLevels; ++level)
#pragma GCC unroll 8
                for (int v = 0; v < NV; ++v) query[level][v] = kb::load_bytes<U>(queries + size_t(level * W + c) * G * 2 + v * L * 4);
#pragma GCC unroll 16
            for (int r = 0; r < kPass; ++r) {
                const U x = repeat<L, kSplit>(rows + r * Width + c);
#pragma GCC unroll 2
                for (int level = 0; level < kLevels; ++level)
#pragma GCC unroll 8
                    for (int v = 0; v < NV; ++v) acc[r][v] = dot2<L>(acc[r][v], x, query[level][v]);
            }
        }
    }
    void scores(const kb::bf16* latent, const kb::bf16* key, float* to) {  // of kPass rows
        F acc[kPass][NV] = {};
        dots<LORA>(acc, latent, q);
        dots<ROPE>(acc, key, q + size_t(LORA) * G * 2);
#pragma GCC unroll 16
        for (int r = 0; r < kPass; r += kSplit) {
            sum_neighbours<L, kSplit>(acc[r]);
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v) store_f(to + r * G + v * L, acc[r][v]);
        }
    }
    static void split(kb::f32x16 first, kb::f32x16 second, float* pairs, float* rest) {  // rest: of both, if two levels are kept
        kb::bf16 a[16], b[16];
        kb::store16(a, first), kb::store16(b, second);
        if constexpr (kWeights == 2) {
            kb::bf16 c[16], d[16];
            kb::store16(c, first - kb::load16(a)), kb::store16(d, second - kb::load16(b));
            put_pairs(c, d, rest);
        }
        put_pairs(a, b, pairs);
    }
    KB_INLINE static void put_pairs(const kb::bf16* a, const kb::bf16* b, float* to) {
        const auto low = __builtin_convertvector(kb::load_bytes<kb::u16x16>(a), kb::u32x16);
        const kb::u32x16 both = low | __builtin_convertvector(kb::load_bytes<kb::u16x16>(b), kb::u32x16) << 16;
        std::memcpy(to, &both, sizeof both);
    }
    void softmax(int pairs) {
        const float scale = 1.0f / std::sqrt(float(Cfg::QK));
        const int n = pairs * G / kWide;
        for (int v = 0; v < kWide; v += 16) {
            kb::f32x16 top = kb::load16(m + v);
            for (int r = 0; r < n; ++r) {
                const kb::f32x16 x = kb::load16(early + r * kWide + v), y = kb::load16(late + r * kWide + v);
                top = x > top ? x : top;
                top = y > top ? y : top;
            }
            for (int step = 8; step >= G; step /= 2) {  // lanes of one head
                float t[16];
                kb::store16(t, top);
                for (int i = 0; i < step; ++i)
                    for (int j = i; j < 16; j += 2 * step) t[j] = t[j + step] = t[j] > t[j + step] ? t[j] : t[j + step];
                top = kb::load16(t);
            }
            const kb::f32x16 keep = kb::exp16((kb::load16(m + v) - top) * scale);
            kb::f32x16 sum = {};
            for (int r = 0; r < n; ++r) {
                float *x = early + r * kWide + v, *y = late + r * kWide + v;
                const kb::f32x16 a = kb::exp16((kb::load16(x) - top) * scale), b = kb::exp16((kb::load16(y) - top) * scale);
                sum += a + b;
                split(a, b, x, y);
            }
            kb::store16(m + v, top);
            kb::store16(l + v, kb::load16(l + v) * keep + sum);
            kb::store16(corr + v, keep);
        }
    }
    void gather(const kb::bf16* latent, int rows) {
        for (int c = 0; c < LORA; c += kVectors * L)
            for (int h = 0; h < G; h += kHeads) {
                F acc[kHeads][kVectors] = {};
                for (int r = 0; r < rows; r += 2 * kPass)
                    for (int j = 0; j < kPass; ++j) {
                        touch();
                        const kb::bf16* row = latent + size_t(r + j) * LORA + c;
                        U x[kVectors];
#pragma GCC unroll 8
                        for (int v = 0; v < kVectors; v += 2) weave<L>(row + v * L, row + kPass * LORA + v * L, x[v], x[v + 1]);
                        const int at = (r / 2 + j) * G + h;
#pragma GCC unroll 8
                        for (int i = 0; i < kHeads; ++i)
#pragma GCC unroll 2
                            for (int level = 0; level < kWeights; ++level) {
                                const U weight = repeat<L, 1>((level ? late : early) + at + i);
#pragma GCC unroll 16
                                for (int v = 0; v < kVectors; ++v) acc[i][v] = dot2<L>(acc[i][v], x[v], weight);
                            }
                    }
#pragma GCC unroll 8
                for (int i = 0; i < kHeads; ++i)
#pragma GCC unroll 16
                    for (int v = 0; v < kVectors; ++v) {
                        float* to = ctx + (h + i) * LORA + c + v * L;
                        store_f(to, load_f<L>(to) * corr[h + i] + acc[i][v]);
                    }
            }
    }
    // `rows` (a multiple of kChunk) lie one after the other; from `valid` on they are zeros and must not count.
    void span(const kb::bf16* latent, const kb::bf16* key, int rows, int valid) {
        for (int r = 0; r < rows; r += kPass)
            scores(latent + size_t(r) * LORA, key + size_t(r) * ROPE, (r / kPass % 2 ? late : early) + r / (2 * kPass) * kPass * G);
        for (int r = valid; r < rows; ++r)
            for (int h = 0; h < G; ++h) (r / kPass % 2 ? late : early)[(r / (2 * kPass) * kPass + r % kPass) * G + h] = -HUGE_VALF;
        softmax(rows / 2);
        gather(latent, rows);
    }
    void run(const kb::Launch& launch, const typename Cfg::Ports& p) {
        const int position = int(launch.position), whole = position / kChunk * kChunk, left = position - whole;
        ahead_latent = reinterpret_cast<const char*>(p.c_kv.data(0, size_t(position) * LORA));
        ahead_key = reinterpret_cast<const char*>(p.k_rope.data(0, size_t(position) * ROPE));
        int asked = position < kAhead ? position : kAhead;
        for (ahead_rows = asked; ahead_rows > 0;) touch();
        start(p);
        for (int first = 0; first < whole; first += kBlock) {
            const int rows = whole - first < kBlock ? whole - first : kBlock;
            const int until = first + rows + kAhead < position ? first + rows + kAhead : position;
            if (kAhead > 0 && until > asked) ahead_rows += until - asked, asked = until;
            const kb::bf16* key = p.k_rope.data(size_t(first) * ROPE, size_t(rows) * ROPE);
            span(p.c_kv.data(size_t(first) * LORA, size_t(rows) * LORA), key, rows, rows);
        }
        if (left > 0) {
            std::memset(tail, 0, size_t(kChunk) * W * 2);
            std::memcpy(tail, p.c_kv.data(size_t(whole) * LORA, size_t(left) * LORA), size_t(left) * LORA * 2);
            std::memcpy(tail_key, p.k_rope.data(size_t(whole) * ROPE, size_t(left) * ROPE), size_t(left) * ROPE * 2);
            span(tail, tail_key, kChunk, left);
        }
        for (int h = 0; h < G; ++h) {
            float sum = 0.0f;
            for (int i = h; i < kWide; i += G) sum += l[i];
            for (int c = 0; c < LORA; c += 16) {
                float in_order[16];
                for (int j = 0; j < 16; ++j) in_order[j] = ctx[h * LORA + woven<L>(c + j)];
                p.ctx.put16(size_t(h * LORA + c), kb::load16(in_order) / sum);
            }
        }
    }
};

template <class Cfg>
struct Stage {
    using Path = PairHeads<Cfg>;
    struct Regs {};
    static constexpr int kPages = 0;
    static constexpr size_t kPageBytes = 0;
    static constexpr size_t kScratchBytes = (Path::kBytes + 63) / 64 * 64;
    static void begin(kb::Team, const kb::Launch&, int, const typename Cfg::Ports&, Regs&, std::byte*) {}
    static void finish(kb::Team, const kb::Launch& run, int, const typename Cfg::Ports& p, Regs&, std::byte* scratch) {
        Path(scratch).run(run, p);
    }
};
