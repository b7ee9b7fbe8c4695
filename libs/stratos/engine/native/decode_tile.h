// Products of a tile for a row of one token: K and V are read where they lie in packed pages, nothing is copied.
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
    typedef typename PackedOf<T>::type P;
    constexpr int VECS = GROUP_KEYS / LANES;
    vec sums[ROWS][GROUPS * VECS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < GROUPS * VECS; v++) sums[r][v] = vset(0);
    for (int u = 0; u < units; u++) {
        vec column[GROUPS * VECS];
#pragma GCC unroll 4
        for (int v = 0; v < GROUPS * VECS; v++) {
            const int64_t at = u * GROUP_KEYS + v % VECS * LANES;
            column[v] = vload((const P *)keys.now[first + v / VECS] + at);
            if (v % VECS == 0) fetch((const P *)keys.next[first + v / VECS] + at);
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

// VECS vectors of V, of one unit of keys, from element `at` of the group on.
template <class T, class U, int VECS> struct ValueColumns {
    static inline void load(const T *group, int64_t at, int64_t, vec *column) {
#pragma GCC unroll 4
        for (int v = 0; v < VECS; v++) column[v] = vload(group + at + v * LANES);
    }
};

#if defined(__AVX512BF16__) && !defined(STRATOS_TILE_ORDER)
// Two rows of V side by side.  Dimensions leave in the order of the unpacking, 0-3 8-11 16-19 24-27 and then 4-7 12-15 ...
// of every 32: they are sums of their own, so they may stay in it until all keys are added.
template <int VECS> struct ValueColumns<bf16_t, PairUnits, VECS> {
    static_assert(VECS % 2 == 0, "a vector of a row has 32 dimensions");
    static inline void load(const bf16_t *group, int64_t at, int64_t dim, vec *column) {
#pragma GCC unroll 2
        for (int v = 0; v < VECS; v += 2) {
            const __m512i even = _mm512_loadu_si512(group + at + v * LANES);
            const __m512i odd = _mm512_loadu_si512(group + at + dim + v * LANES);
            column[v] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(even, odd));
            column[v + 1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(even, odd));
        }
    }
};
#endif

// Puts the dimensions of a sum back in order.
template <class T, class U> static inline void restore_dimensions(float *, int64_t) {}
#if defined(__AVX512BF16__) && !defined(STRATOS_TILE_ORDER)
template <> inline void restore_dimensions<bf16_t, PairUnits>(float *sums, int64_t dim) {
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
            const int64_t at = u * U::PER_UNIT * dim + d;
#pragma GCC unroll 2
            for (int i = 0; i < U::PER_UNIT; i++)
#pragma GCC unroll 4
                for (int v = 0; v < VECS * LANES; v += LINE) fetch(values.next[g] + at + i * dim + v);
            vec column[VECS];
            ValueColumns<T, U, VECS>::load(values.now[g], at, dim, column);
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

#define FOR_ROWS(rows, call)        \
    switch (rows) {                 \
        case 1: call(1); break;     \
        case 2: call(2); break;     \
        case 3: call(3); break;     \
        case 4: call(4); break;     \
        case 5: call(5); break;     \
        default: call(6); break;    \
    }
