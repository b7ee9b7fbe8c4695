// Products of a tile for a row of one token: K and V are read where they lie in packed pages, numbers or codes.
//
// Sums have the order of tiles.h, so the bits are those of a prefill.  While a vector is read, the same one of the tile
// that comes next is fetched: KV lies in pieces that the processor does not foresee.
#pragma once

#include "packed_keys.h"

template <class T> struct TileGroups {  // where K, or V, of the groups of a tile begins, and of the tile after it
    const T *now[TILE / GROUP_KEYS], *next[TILE / GROUP_KEYS];
};

template <class T> static inline void fetch(const T *from) { _mm_prefetch((const char *)from, _MM_HINT_T1); }

// scores [ROWS][TILE] of GROUPS groups from `first` on.
template <class U, int ROWS, int GROUPS, class T>
static inline void score_groups(const TileGroups<T> &keys, int first, const float *query, int64_t stride, int units,
                                float *scores) {
    constexpr int VECS = GROUP_KEYS / LANES, PER = U::PER_UNIT;
    constexpr int UNITS_OF_LINE = 64 / (GROUP_KEYS * PER * (int)sizeof(T));
    vec sums[ROWS][GROUPS * VECS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < GROUPS * VECS; v++) sums[r][v] = vset(0);
    for (int u = 0; u < units; u++) {
        vec column[GROUPS * VECS];
#pragma GCC unroll 4
        for (int v = 0; v < GROUPS * VECS; v++) {
            column[v] = load_unit<U>(keys.now[first + v / VECS] + u * GROUP_KEYS * PER + v % VECS * LANES, GROUP_KEYS);
            if (v % VECS == 0 && u % UNITS_OF_LINE == 0) fetch(keys.next[first + v / VECS] + u * GROUP_KEYS * PER);
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < GROUPS * VECS; v++) sums[r][v] = U::madd(column[v], query[r * stride + u], sums[r][v]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < GROUPS * VECS; v++) vstore(scores + r * TILE + first * GROUP_KEYS + v * LANES, sums[r][v]);
}

template <class U, int ROWS, class T>
static void score_tile(const TileGroups<T> &keys, int num_groups, const float *query, int64_t stride, int units,
                       float *scores) {
    constexpr int AT_ONCE = STRIP * LANES / GROUP_KEYS;
    int g = 0;
    for (; g + AT_ONCE <= num_groups; g += AT_ONCE)
        score_groups<U, ROWS, AT_ONCE>(keys, g, query, stride, units, scores);
    for (; g < num_groups; g++) score_groups<U, ROWS, 1>(keys, g, query, stride, units, scores);
}

// VECS vectors of V, of one unit of keys, from dimension `d` of the unit on.
template <class T, class U, int VECS> struct ValueColumns {
    static inline void load(const T *unit, int64_t d, int64_t dim, vec *column) {
#pragma GCC unroll 4
        for (int v = 0; v < VECS; v++) column[v] = load_unit<U>(unit + d + v * LANES, dim);
    }
};

#if defined(__AVX512BF16__)
// Two rows of V side by side.  Dimensions leave in the order of the unpacking, 0-3 8-11 16-19 24-27 and then 4-7 12-15 ...
// of every 32: they are sums of their own, so they may stay in it until all keys are added.
template <class U, int VECS> struct ValueColumns<bf16_t, U, VECS> {
    static_assert(VECS % 2 == 0, "a vector of a row has 32 dimensions");
    static inline void load(const bf16_t *unit, int64_t d, int64_t dim, vec *column) {
#pragma GCC unroll 2
        for (int v = 0; v < VECS; v += 2) {
            const __m512i even = _mm512_loadu_si512(unit + d + v * LANES);
            const __m512i odd = _mm512_loadu_si512(unit + dim + d + v * LANES);
            column[v] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(even, odd));
            column[v + 1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(even, odd));
        }
    }
};
#endif

// Puts the dimensions of a sum back in order.
template <class T> static inline void restore_dimensions(float *, int64_t) {}
#if defined(__AVX512BF16__)
template <> inline void restore_dimensions<bf16_t>(float *sums, int64_t dim) {
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t d = 0; d < dim; d += 2 * LANES) {
        const vec first = vload(sums + d), second = vload(sums + d + LANES);
        vstore(sums + d, _mm512_permutex2var_ps(first, low, second));
        vstore(sums + d + LANES, _mm512_permutex2var_ps(first, high, second));
    }
}
#endif

// out [ROWS][...] = out * factors + weights V, VECS vectors from dimension `d` on.
template <class U, int ROWS, int VECS, class T>
static inline void add_columns(const TileGroups<T> &values, int num_groups, int64_t d, int64_t dim, const float *weights,
                               const float *factors, float *out) {
    constexpr int LINE = 64 / sizeof(T), UNITS = GROUP_KEYS / U::PER_UNIT;
    vec sums[ROWS][VECS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECS; v++) sums[r][v] = vmul(vload(out + r * dim + d + v * LANES), vset(factors[r]));
    for (int g = 0; g < num_groups; g++)
        for (int u = 0; u < UNITS; u++) {
            const int64_t at = u * U::PER_UNIT * dim;
#pragma GCC unroll 2
            for (int i = 0; i < U::PER_UNIT; i++)
#pragma GCC unroll 4
                for (int v = 0; v < VECS * LANES; v += LINE) fetch(values.next[g] + at + i * dim + d + v);
            vec column[VECS];
            ValueColumns<T, U, VECS>::load(values.now[g] + at, d, dim, column);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
                for (int v = 0; v < VECS; v++)
                    sums[r][v] = U::madd(column[v], weights[r * TILE + g * UNITS + u], sums[r][v]);
        }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECS; v++) vstore(out + r * dim + d + v * LANES, sums[r][v]);
}

template <class U, int ROWS, class T>
static void add_tile(const TileGroups<T> &values, int num_groups, int64_t dim, const float *weights, const float *factors,
                     float *out) {
    int64_t d = 0;
    for (; d + STRIP * LANES <= dim; d += STRIP * LANES)
        add_columns<U, ROWS, STRIP>(values, num_groups, d, dim, weights, factors, out);
    for (; d < dim; d += 2 * LANES) add_columns<U, ROWS, 2>(values, num_groups, d, dim, weights, factors, out);
}

#define FOR_ROWS(rows, call)         \
    switch (rows) {                  \
        case 1: return call(1);      \
        case 2: return call(2);      \
        case 3: return call(3);      \
        case 4: return call(4);      \
        case 5: return call(5);      \
        default: return call(6);     \
    }

// The same for `rows` of at most U::TOKEN_ROWS; a scratch is for units that have to be copied.
template <class U, class T>
static void score_rows(ItemScope<U> &, const TileGroups<T> &keys, int num_groups, int rows, const float *query, int64_t dim,
                       float *scores, float *) {
#define SCORE(ROWS) score_tile<U, ROWS>(keys, num_groups, query, dim, (int)(dim / U::PER_UNIT), scores)
    FOR_ROWS(rows, SCORE)
#undef SCORE
}

template <class U, class T>
static void add_rows(ItemScope<U> &, const TileGroups<T> &values, int num_groups, int rows, int64_t dim,
                     const float *weights, const float *factors, float *out, float *) {
#define ADD(ROWS) add_tile<U, ROWS>(values, num_groups, dim, weights, factors, out)
    FOR_ROWS(rows, ADD)
#undef ADD
}
#undef FOR_ROWS

#include "token_tiles.h"
