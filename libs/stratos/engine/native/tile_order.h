// Products of bf16 in the order of the tile instruction, and the same sums by vectors.
//
// TDPBF16PS adds 32 products to an element of C in one step.  Per step, from zero: e = fma(a[2i], b[2i], e) and
// o = fma(a[2i + 1], b[2i + 1], o) for i = 0..15 in order, then c += e + o; float, round to nearest even, denormals
// read and written as zero (Intel's manual, and bit by bit on hardware in the tests).  Any other instruction that adds
// in this order gives the same bits, so a row may be computed by tiles in one step and by vectors in the next one.
// A tail is filled up to a whole step with zeros on both sides, never left out: zeros decide the sign of a zero.
#pragma once

#include "simd.h"

#if defined(STRATOS_TILE_ORDER)

struct TileUnits {
    static constexpr int PER_UNIT = 2, STEP = 16, SPAN = 32, ROWS = 32, TOKEN_ROWS = 16;
};

// Denormals are zeros until the end of the scope, in vectors as in tiles.
struct DenormalsAreZero {
    const unsigned before = _mm_getcsr();
    DenormalsAreZero() { _mm_setcsr(before | 0x8040); }
    ~DenormalsAreZero() { _mm_setcsr(before); }
};

// Rows of units, 16 and 16 to a tile: where they lie.
struct Rows {
    const float *floats;
    int64_t stride;       // of a row in its tile
    int64_t step_stride;  // of 16 units
    int64_t tile_stride;  // of 16 rows

    const float *at(int64_t row, int64_t unit) const {
        return floats + row / 16 * tile_stride + row % 16 * stride + unit / 16 * step_stride;
    }
    Rows from(int64_t row, int64_t unit) const { return Rows{at(row, unit), stride, step_stride, tile_stride}; }
};

struct Operands {
    const float *packed;  // [units][packed_stride], lanes are columns of the result; units of whole steps
    int64_t packed_stride;
    Rows rows;
    int units;
    float *out;  // [rows][out_stride]
    int64_t out_stride;
};

template <int ROWS, int VECS> static inline void twin_block(const Operands &p, int64_t row, int64_t column, bool is_first) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    alignas(64) float even_x[ROWS][LANES], odd_x[ROWS][LANES];
    vec sums[ROWS][VECS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECS; v++)
            sums[r][v] = is_first ? vset(0) : vload(p.out + (row + r) * p.out_stride + column + v * LANES);
    for (int64_t u = 0; u < p.units; u += TileUnits::STEP) {
        vec even[ROWS][VECS], odd[ROWS][VECS];
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            __m512i x = _mm512_loadu_si512(p.rows.at(row + r, u));
            vstore(even_x[r], _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)));
            vstore(odd_x[r], _mm512_castsi512_ps(_mm512_and_si512(x, upper)));
#pragma GCC unroll 4
            for (int v = 0; v < VECS; v++) even[r][v] = odd[r][v] = vset(0);
        }
        for (int i = 0; i < TileUnits::STEP; i++)
#pragma GCC unroll 4
            for (int v = 0; v < VECS; v++) {
                __m512i pair = _mm512_loadu_si512(p.packed + (u + i) * p.packed_stride + column + v * LANES);
                vec even_w = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
                vec odd_w = _mm512_castsi512_ps(_mm512_and_si512(pair, upper));
#pragma GCC unroll 4
                for (int r = 0; r < ROWS; r++) {
                    even[r][v] = vfma(vset(even_x[r][i]), even_w, even[r][v]);
                    odd[r][v] = vfma(vset(odd_x[r][i]), odd_w, odd[r][v]);
                }
            }
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < VECS; v++) sums[r][v] = vadd(sums[r][v], vadd(even[r][v], odd[r][v]));
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECS; v++) vstore(p.out + (row + r) * p.out_stride + column + v * LANES, sums[r][v]);
}

template <int ROWS, int VECS>
static inline void twin_rows(const Operands &p, int64_t row, int columns, bool is_first) {
    int c = 0;
    for (; c + VECS * LANES <= columns; c += VECS * LANES) twin_block<ROWS, VECS>(p, row, c, is_first);
    for (; c < columns; c += LANES) twin_block<ROWS, 1>(p, row, c, is_first);
}

// out += rows packed (= where is_first), by vectors.
static void accumulate_by_vectors(const Operands &p, int rows, int columns, bool is_first) {
    int r = 0;
    for (; r + 4 <= rows; r += 4) twin_rows<4, 2>(p, r, columns, is_first);
    for (; r + 2 <= rows; r += 2) twin_rows<2, 4>(p, r, columns, is_first);
    for (; r < rows; r++) twin_rows<1, 4>(p, r, columns, is_first);
}

#if defined(__AMX_BF16__)
#include "amx.h"
#else
struct TileScope {};  // nothing to shape

struct PairProducts {};

template <class P = PairProducts>
static inline void accumulate(TileScope &, const Operands &p, int rows, int columns, bool is_first,
                              const Fetch & = Fetch()) {
    accumulate_by_vectors(p, rows, columns, is_first);
}
#endif

#endif  // STRATOS_TILE_ORDER
