// Products by tile instructions: 16 rows of 64 bytes a tile, eight tiles.  Include tile_order.h, which says the order.
#pragma once

struct TileShapes {  // what LDTILECFG reads
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// Shapes of the calling thread's tiles while the scope lasts.  Others who use tiles shape them before each use, too.
struct TileScope {
    unsigned shaped = 0;  // what shape() was called with; 0 is nothing

    // Tiles 0-3 are sums, 4 and 5 hold rows, or weights where `last_rows` is 16; 6 and 7 hold weights.
    void shape(int sums, int last_sums, int rows, int last_rows) {
        unsigned wanted = (unsigned)(sums | last_sums << 8 | rows << 16 | last_rows << 24);
        if (wanted == shaped) return;
        shaped = wanted;
        TileShapes shapes;
        memset(&shapes, 0, sizeof shapes);
        shapes.palette = 1;
        const int of_tile[8] = {sums, sums, last_sums, last_sums, rows, last_rows, 16, 16};
        for (int i = 0; i < 8; i++) shapes.rows[i] = (uint8_t)of_tile[i], shapes.row_bytes[i] = 64;
        __asm__ volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
    }
    ~TileScope() {
        if (shaped) __asm__ volatile("tilerelease" ::: "memory");
    }
};

// As in the compiler's own header, which does not say that they touch memory.
#define TILE_ASM(text, ...) __asm__ volatile(text ::__VA_ARGS__ : "memory")
template <int TILE_ID> static inline void tile_load(const float *from, int64_t stride_bytes) {
    TILE_ASM("tileloadd (%0,%1,1), %%tmm%c2", "r"(from), "r"(stride_bytes), "i"(TILE_ID));
}
template <int TILE_ID> static inline void tile_store(float *to, int64_t stride_bytes) {
    TILE_ASM("tilestored %%tmm%c2, (%0,%1,1)", "r"(to), "r"(stride_bytes), "i"(TILE_ID));
}
template <int TILE_ID> static inline void tile_zero() { TILE_ASM("tilezero %%tmm%c0", "i"(TILE_ID)); }
// What the lanes of 32 bits hold: pairs of bf16 and sums that are floats, or four bytes, of a weight without a sign, and
// sums that are integers.
struct PairProducts {
    static constexpr int64_t OPERATIONS = 2 * 16 * 16 * 32;  // of an instruction
    template <int SUMS, int ROWS, int WEIGHTS> static inline void multiply() {
        TILE_ASM("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0", "i"(SUMS), "i"(ROWS), "i"(WEIGHTS));
    }
};
struct ByteProducts {
    static constexpr int64_t OPERATIONS = 2 * 16 * 16 * 64;
    template <int SUMS, int ROWS, int WEIGHTS> static inline void multiply() {
        TILE_ASM("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0", "i"(SUMS), "i"(ROWS), "i"(WEIGHTS));
    }
};
#undef TILE_ASM

static inline void tiles_zero() { tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>(); }

constexpr int AHEAD_FLOATS = 2048;  // of a stream of weights that is read once: 8 KiB

// Up to 16 rows and TILES * 16 columns from `column`.
template <class P, int TILES, bool IS_STREAM> static inline void tile_row(const Operands &p, int64_t column, bool is_first) {
    const int64_t packed_bytes = p.packed_stride * 4, rows_bytes = p.rows.stride * 4, out_bytes = p.out_stride * 4;
    const float *w = p.packed + column, *x = p.rows.floats;
    float *out = p.out + column;
    if (is_first) {
        tiles_zero();
    } else {
        tile_load<0>(out, out_bytes);
        if (TILES > 1) tile_load<1>(out + 16, out_bytes);
        if (TILES > 2) tile_load<2>(out + 32, out_bytes);
        if (TILES > 3) tile_load<3>(out + 48, out_bytes);
    }
    for (int u = 0; u < p.units; u += TileUnits::STEP, w += TileUnits::STEP * p.packed_stride, x += p.rows.step_stride) {
        if (IS_STREAM) prefetch<_MM_HINT_T0>(w + AHEAD_FLOATS, TileUnits::STEP * TILES);
        tile_load<4>(x, rows_bytes);
        tile_load<5>(w, packed_bytes);
        P::template multiply<0, 4, 5>();
        if (TILES > 1) tile_load<6>(w + 16, packed_bytes), P::template multiply<1, 4, 6>();
        if (TILES > 2) tile_load<7>(w + 32, packed_bytes), P::template multiply<2, 4, 7>();
        if (TILES > 3) tile_load<5>(w + 48, packed_bytes), P::template multiply<3, 4, 5>();
    }
    tile_store<0>(out, out_bytes);
    if (TILES > 1) tile_store<1>(out + 16, out_bytes);
    if (TILES > 2) tile_store<2>(out + 32, out_bytes);
    if (TILES > 3) tile_store<3>(out + 48, out_bytes);
}

// 17 to 32 rows and 32 columns; `next` is fetched, two lines a step.
template <class P> static inline void tile_square(const Operands &p, int64_t column, bool is_first, const float *next, int lines) {
    const int64_t packed_bytes = p.packed_stride * 4, rows_bytes = p.rows.stride * 4, out_bytes = p.out_stride * 4;
    const float *w = p.packed + column, *x = p.rows.floats;
    float *out = p.out + column, *lower_out = out + 16 * p.out_stride;
    if (is_first) {
        tiles_zero();
    } else {
        tile_load<0>(out, out_bytes), tile_load<1>(out + 16, out_bytes);
        tile_load<2>(lower_out, out_bytes), tile_load<3>(lower_out + 16, out_bytes);
    }
    for (int u = 0; u < p.units; u += TileUnits::STEP) {
        if (next) prefetch<_MM_HINT_T0>(next, lines), next += lines * LINE_FLOATS;
        tile_load<6>(w, packed_bytes);
        tile_load<4>(x, rows_bytes);
        P::template multiply<0, 4, 6>();
        tile_load<7>(w + 16, packed_bytes);
        P::template multiply<1, 4, 7>();
        tile_load<5>(x + p.rows.tile_stride, rows_bytes);
        P::template multiply<2, 5, 6>();
        P::template multiply<3, 5, 7>();
        w += TileUnits::STEP * p.packed_stride, x += p.rows.step_stride;
    }
    tile_store<0>(out, out_bytes), tile_store<1>(out + 16, out_bytes);
    tile_store<2>(lower_out, out_bytes), tile_store<3>(lower_out + 16, out_bytes);
}

template <class P, bool IS_STREAM>
static inline void tile_rows(const Operands &p, int columns, bool is_first) {
    int c = 0;
    for (; c + 64 <= columns; c += 64) tile_row<P, 4, IS_STREAM>(p, c, is_first);
    if (c < columns) tile_row<P, 2, IS_STREAM>(p, c, is_first);
}

// out += rows packed (= where is_first), `rows` of at most TileUnits::ROWS, columns a multiple of 32.
template <class P = PairProducts>
static inline void accumulate(TileScope &scope, const Operands &p, int rows, int columns, bool is_first,
                              const Fetch &fetch = Fetch()) {
    if (rows > 16) {
        scope.shape(16, rows - 16, 16, rows - 16);
        const float *next = fetch.next;
        for (int c = 0; c < columns; c += 32) {
            tile_square<P>(p, c, is_first, next, fetch.lines);
            if (next) next += p.units / TileUnits::STEP * fetch.lines * LINE_FLOATS;
        }
    } else {
        scope.shape(rows, rows, rows, 16);
        if (fetch.is_stream)
            tile_rows<P, true>(p, columns, is_first);
        else
            tile_rows<P, false>(p, columns, is_first);
    }
}
