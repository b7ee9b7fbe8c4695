// Products of a few rows with a tile: packed K and V of attention, packed panels of weights.
//
// A "unit" is 32 bits of a row: one float, or with AVX512-BF16 two bf16 values that one instruction multiplies and adds.
//   K packed  [units of head_dim][TILE keys]       S = Q K: lanes are keys, the units of head_dim are added in order
//   V packed  [units of keys][padded head_dim]     O += P V: lanes are dimensions, the units of keys are added in order
// So the arithmetic of one query row is the same in a block of one row and of MAX_ROWS.
#pragma once

#include "simd.h"
#include "tile_order.h"

constexpr int TILE = 64;     // keys; tiles begin at multiples of it
constexpr int MAX_ROWS = 6;  // query rows whose sums stay in registers

#if defined(__AVX512F__)
constexpr int STRIP = 4;  // vectors of one row whose sums stay in registers
#else
constexpr int STRIP = 2;
#endif

// PER_UNIT: elements of a unit; STEP: units that are only taken together; SPAN: columns, keys and dimensions come in
// multiples of it; ROWS: at most, in one call; TOKEN_ROWS: the same over packed pages.
struct FloatUnits {  // T: type of the pages; products are of floats
    static constexpr int PER_UNIT = 1, STEP = 1, SPAN = LANES, ROWS = MAX_ROWS, TOKEN_ROWS = MAX_ROWS;
    static inline vec madd(vec a, float unit, vec sum) { return vfma(a, vset(unit), sum); }
};

#if defined(STRATOS_TILE_ORDER)
template <class T> struct UnitsOf { typedef FloatUnits type; };
template <> struct UnitsOf<bf16_t> { typedef TileUnits type; };
#elif defined(__AVX512BF16__)
struct PairUnits {  // two bf16 values
    static constexpr int PER_UNIT = 2, STEP = 1, SPAN = LANES, ROWS = MAX_ROWS, TOKEN_ROWS = MAX_ROWS;
    static inline vec madd(vec a, float unit, vec sum) {
        return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)vset(unit));
    }
};
template <class T> struct UnitsOf { typedef FloatUnits type; };
template <> struct UnitsOf<bf16_t> { typedef PairUnits type; };
#else
template <class T> struct UnitsOf { typedef FloatUnits type; };
#endif

// How one unit lies in memory where units of several rows lie side by side.
#if defined(__AVX512BF16__)
template <class T> struct PackedOf { typedef float type; };  // of bf16: a pair
template <> struct PackedOf<f16_t> { typedef f16_t type; };
#else
template <class T> struct PackedOf { typedef T type; };
#endif

constexpr int WIDEST_SPAN = UnitsOf<bf16_t>::type::SPAN, MOST_ROWS = UnitsOf<bf16_t>::type::ROWS;

// What an item of work sets up for its products; nothing for most units.
template <class U> struct ItemScope {};

template <class U> static inline int64_t whole_steps(int64_t units) { return (units + U::STEP - 1) / U::STEP * U::STEP; }

// Rows [block_begin(b), block_begin(b + 1)) are block b: as even as possible, or full ones and a rest where rows are tiles.
template <class U> static inline int64_t num_blocks_of(int64_t rows) { return (rows + U::ROWS - 1) / U::ROWS; }
template <class U> static inline int64_t block_begin(int64_t rows, int64_t b) {
    if (U::STEP == 1) return rows * b / num_blocks_of<U>(rows);
    return b * U::ROWS < rows ? b * U::ROWS : rows;
}

// sums[row][column] over `units` steps: a [units][a_stride], b [rows][b_stride] broadcast, columns of VECS vectors.
// The second cache takes what is fetched: the first one is full of what is at work.
template <class U, int ROWS, int VECS, class A>
static inline void product(const A *a, int64_t a_stride, const float *b, int64_t b_stride, int units, float *out,
                           int64_t out_stride, const float *factors, Fetch fetch) {
    vec sums[ROWS][VECS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECS; v++)
            sums[r][v] = factors ? vmul(vload(out + r * out_stride + v * LANES), vset(factors[r])) : vset(0);
    for (int u = 0; u < units; u++) {
        prefetch<_MM_HINT_T1>(fetch.next, fetch.lines);
        fetch.next += fetch.lines * LINE_FLOATS;
        vec column[VECS];
#pragma GCC unroll 4
        for (int v = 0; v < VECS; v++) column[v] = vload(a + u * a_stride + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < VECS; v++) sums[r][v] = U::madd(column[v], b[r * b_stride + u], sums[r][v]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECS; v++) vstore(out + r * out_stride + v * LANES, sums[r][v]);
}

template <class U, int ROWS, class A>
static void product_rows(const A *a, int64_t a_stride, const float *b, int64_t b_stride, int units, float *out,
                         int64_t out_stride, const float *factors, int columns, const Fetch &fetch) {
    int c = 0;
    for (; c + STRIP * LANES <= columns; c += STRIP * LANES)
        product<U, ROWS, STRIP>(a + c, a_stride, b, b_stride, units, out + c, out_stride, factors, fetch);
    for (; c < columns; c += LANES)
        product<U, ROWS, 1>(a + c, a_stride, b, b_stride, units, out + c, out_stride, factors, fetch);
}

// out = out * factors + b a (or b a where factors is null), `rows` of at most U::ROWS, columns a multiple of LANES.
template <class U, class A>
static void multiply(ItemScope<U> &, int rows, const A *a, int64_t a_stride, const float *b, int64_t b_stride, int units, float *out,
                     int64_t out_stride, const float *factors, int columns, const Fetch &fetch) {
    switch (rows) {
        case 1: return product_rows<U, 1>(a, a_stride, b, b_stride, units, out, out_stride, factors, columns, fetch);
        case 2: return product_rows<U, 2>(a, a_stride, b, b_stride, units, out, out_stride, factors, columns, fetch);
        case 3: return product_rows<U, 3>(a, a_stride, b, b_stride, units, out, out_stride, factors, columns, fetch);
        case 4: return product_rows<U, 4>(a, a_stride, b, b_stride, units, out, out_stride, factors, columns, fetch);
        case 5: return product_rows<U, 5>(a, a_stride, b, b_stride, units, out, out_stride, factors, columns, fetch);
        default: return product_rows<U, 6>(a, a_stride, b, b_stride, units, out, out_stride, factors, columns, fetch);
    }
}

#if defined(STRATOS_TILE_ORDER)
template <> struct ItemScope<TileUnits> {
    DenormalsAreZero denormals;
    TileScope tiles;
};

// The same with tiles or their twin: units of whole steps, columns a multiple of 32.
template <>
void multiply<TileUnits>(ItemScope<TileUnits> &scope, int rows, const float *a, int64_t a_stride, const float *b,
                         int64_t b_stride, int units, float *out, int64_t out_stride, const float *factors, int columns,
                         const Fetch &) {
    for (int r = 0; factors && r < rows; r++)
        for (int c = 0; c < columns; c += LANES)
            vstore(out + r * out_stride + c, vmul(vload(out + r * out_stride + c), vset(factors[r])));
    const Rows all{b, b_stride, TileUnits::STEP, 16 * b_stride};
    accumulate(scope.tiles, Operands{a, a_stride, all, units, out, out_stride}, rows, columns, !factors);
}
#endif

// LANES units of a row from dimension `d` on, zeros after its end; a null row is all zeros.
template <class T, class U> static inline vec load_units(const T *row, int d, int dim) {
    if (!row) return vset(0);
    if (U::PER_UNIT == 1) return vload(row + d, dim - d);
    return vload((const float *)(row + d), (dim - d) / 2);
}

#if defined(__AVX512F__)
static inline void transpose(vec *x) {
    vec t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]);
    }
#define PAIR(hi, a, b) _mm512_castpd_ps(_mm512_unpack##hi##_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)))
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        x[i] = PAIR(lo, t[i], t[i + 2]);
        x[i + 1] = PAIR(hi, t[i], t[i + 2]);
        x[i + 2] = PAIR(lo, t[i + 1], t[i + 3]);
        x[i + 3] = PAIR(hi, t[i + 1], t[i + 3]);
    }
#undef PAIR
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        vec a = _mm512_shuffle_f32x4(x[i], x[i + 4], 0x88), b = _mm512_shuffle_f32x4(x[i + 8], x[i + 12], 0x88);
        vec c = _mm512_shuffle_f32x4(x[i], x[i + 4], 0xdd), d = _mm512_shuffle_f32x4(x[i + 8], x[i + 12], 0xdd);
        t[i] = _mm512_shuffle_f32x4(a, b, 0x88);
        t[i + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
        t[i + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) x[i] = t[i];
}
#else
static inline void transpose(vec *x) {
    vec t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        x[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        x[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        x[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        x[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++) x[i] = t[i];
}
#endif

// rows: `keys` (a multiple of LANES) pointers, null where there is no key.
template <class T, class U> static void pack_keys(const T *const *rows, int keys, int dim, float *packed) {
    const int units = dim / U::PER_UNIT, whole = (int)whole_steps<U>(units);
    for (int u = units; u < whole; u++) memset(packed + u * TILE, 0, TILE * sizeof(float));
    for (int k = 0; k < keys; k += LANES)
        for (int d = 0; d < dim; d += LANES * U::PER_UNIT) {
            vec x[LANES];
            for (int i = 0; i < LANES; i++) x[i] = load_units<T, U>(rows[k + i], d, dim);
            transpose(x);
            int first = d / U::PER_UNIT, count = (dim - d) / U::PER_UNIT;
            for (int i = 0; i < LANES && i < count; i++) vstore(packed + (first + i) * TILE + k, x[i]);
        }
}

template <class T> static void pack_values(const T *const *rows, int keys, int dim, int padded, float *packed) {
    for (int k = 0; k < keys; k++)
        for (int d = 0; d < dim; d += LANES) vstore(packed + k * padded + d, load_units<T, FloatUnits>(rows[k], d, dim));
}

#if defined(__AVX512BF16__)
template <>
void pack_values<bf16_t>(const bf16_t *const *rows, int keys, int dim, int padded, float *packed) {
    for (int k = 0; k < keys; k += 2)
        for (int d = 0; d < dim; d += LANES) {
            __mmask16 kept = first_lanes(dim - d);
            __m256i zero = _mm256_setzero_si256();
            __m256i even = rows[k] ? _mm256_maskz_loadu_epi16(kept, rows[k] + d) : zero;
            __m256i odd = rows[k + 1] ? _mm256_maskz_loadu_epi16(kept, rows[k + 1] + d) : zero;
            __m512i pair = _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
            _mm512_storeu_si512(packed + k / 2 * padded + d, pair);
        }
}
#endif

// Weights of one row, as units of keys.
template <class U> static inline void store_weights(float *units, int key, vec weights) {
    if (U::PER_UNIT == 1)
        vstore(units + key, weights);
    else
        vstore((bf16_t *)units + key, weights);
}
