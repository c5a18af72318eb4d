// The packed form of int4 matrices that the digit and the widening stages share.
//
// Tile: 16 columns (lanes) x 8 rows = 64 bytes; byte j of a lane holds row j in its low and row 4 + j in its high nibble,
// so one load gives both operands of a 4-way dot product. Block: a group of 128 rows of TILES tiles: for every 8 rows the
// tiles side by side, then bf16 scales [16 * TILES], u8 zeros [16 * TILES], zeros up to a whole line.

// The most tiles side by side that divide `columns`, at most `most` (a power of two). Columns come in sixteens.
constexpr int tiles_of(int columns, int most) {
    while (most > 1 && columns % (16 * most)) most /= 2;
    return most;
}

KB_INLINE kb::i32x16 widen_u8(const std::byte* p) {
    using u8x16 = uint8_t __attribute__((vector_size(16)));
    return __builtin_convertvector(kb::load_bytes<u8x16>(p), kb::i32x16);
}
KB_INLINE kb::f32x16 to_f32(kb::i32x16 v) { return __builtin_convertvector(v, kb::f32x16); }

// N columns x K rows as N / (16 * TILES) bands; a band is one page: its K / 128 blocks in order.
template <int K, int N, int TILES>
struct Bands {
    static_assert(K % 128 == 0 && N % (16 * TILES) == 0, "W4A16 units come in 128 rows and 16 columns");
    static constexpr int kGroups = K / 128, kColumns = 16 * TILES, kBands = N / kColumns;
    static constexpr size_t kCodes = size_t(1024) * TILES;
    static constexpr size_t kBlock = (kCodes + size_t(48) * TILES + 63) / 64 * 64;
    static constexpr size_t kBand = kBlock * kGroups;

    // Column `n` of the packed order is `where(n).column` of segment `where(n).segment`.
    struct Place {
        int segment, column;
    };
    template <class Where>
    static const char* pack(const kb::Unit& u, std::byte* dst, Where where) {
        std::memset(dst, 0, kBand * kBands);
        for (int n = 0; n < N; n += 16) {  // a tile never straddles two segments
            const Place at = where(n);
            const kb::W4 w = u.w4(at.segment);
            for (int g = 0; g < kGroups; ++g) {
                std::byte* block = dst + size_t(n / kColumns) * kBand + size_t(g) * kBlock;
                pack_tile(w, g * 128, at.column, block, n % kColumns);
            }
        }
        return nullptr;
    }
    template <class Where>
    static void unpack(const std::byte* unit, float* out, Where where, int segment_columns) {
        for (int n = 0; n < N; ++n) {
            const Place at = where(n);
            float* column = out + at.segment * segment_columns + at.column;
            for (int k = 0; k < K; ++k) column[size_t(k) * N] = value(unit, k, n);
        }
    }
    // Scales and zero points of tile `t` of a block.
    static KB_INLINE kb::f32x16 scales(const std::byte* block, int t) {
        return kb::load16(reinterpret_cast<const kb::bf16*>(block + kCodes + 32 * t));
    }
    static KB_INLINE kb::f32x16 zeros(const std::byte* block, int t) { return to_f32(widen_u8(block + kCodes + 2 * kColumns + 16 * t)); }
    static float value(const std::byte* unit, int k, int n) {
        const std::byte* block = unit + size_t(n / kColumns) * kBand + size_t(k / 128) * kBlock;
        const int c = n % kColumns, r = k % 128, tile = r / 8 * TILES + c / 16;
        const int pair = std::to_integer<int>(block[tile * 64 + c % 16 * 4 + r % 4]);
        kb::bf16 scale;
        std::memcpy(&scale, block + kCodes + 2 * c, 2);
        const int zero = std::to_integer<int>(block[kCodes + 2 * kColumns + c]);
        return float((r % 8 < 4 ? pair & 15 : pair >> 4) - zero) * kb::to_float(scale);
    }

private:
    static void pack_tile(const kb::W4& w, int k, int column, std::byte* block, int c) {
        for (int s = 0; s < 16; ++s) {
            std::byte* tile = block + size_t(s * TILES + c / 16) * 64;
            const uint8_t* q = w.q + size_t((w.k0 + k) / 2 + 4 * s) * w.cols + w.n0 + column;
            for (int lane = 0; lane < 16; ++lane) {
                // four bytes of two rows each: (0,1) (2,3) (4,5) (6,7)
                const int a = q[lane], b = q[w.cols + lane], e = q[2 * size_t(w.cols) + lane], f = q[3 * size_t(w.cols) + lane];
                tile[4 * lane + 0] = std::byte((a & 15) | (e & 15) << 4);
                tile[4 * lane + 1] = std::byte(a >> 4 | (e & 240));
                tile[4 * lane + 2] = std::byte((b & 15) | (f & 15) << 4);
                tile[4 * lane + 3] = std::byte(b >> 4 | (f & 240));
            }
        }
        for (int lane = 0; lane < 16; ++lane) {
            const kb::bf16 scale = kb::to_bf16(w.scale(k, column + lane));
            std::memcpy(block + kCodes + 2 * (c + lane), &scale, 2);
            block[kCodes + 2 * kColumns + c + lane] = std::byte(int(w.zero(k, column + lane)));
        }
    }
};

// A unit whose segments stand side by side, as a stage inherits it: one page per band, in the order of the columns.
template <class C, int MOST>
struct SideBySide {
    static constexpr int kPart = C::N / C::SEGMENTS;
    static_assert(kPart % 16 == 0, "a tile of 16 columns lies in one segment");
    static constexpr int kTiles = tiles_of(C::N, MOST);
    using Matrix = Bands<C::K, C::N, kTiles>;
    static constexpr int kPages = Matrix::kBands;
    static constexpr size_t kPageBytes = Matrix::kBand;

    static typename Matrix::Place where(int n) { return {n / kPart, n % kPart}; }
    static const char* pack(const kb::Unit& u, std::byte* dst) {
        for (int s = 0; s < C::SEGMENTS; ++s)
            if (const char* why = refuse_w4(u.w4(s))) return why;
        return Matrix::pack(u, dst, where);
    }
    static void unpack(const std::byte* unit, float* w) { Matrix::unpack(unit, w, where, kPart); }
};
