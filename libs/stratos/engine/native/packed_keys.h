// KV as it lies in pages that are packed: K as [kv_head][16 tokens][unit of head_dim][token], a unit as tiles.h says.
//
// A vector of the pages is one unit of several keys, which is what S = Q K reads, so nothing is turned round when K is
// read; a new token's K is written in pieces of one unit.  V and the order of everything else are those of plain pages.
// Of codes, 16 tokens are their codes and then their scales; a unit of K is one code.
#pragma once

#include "kv_codes.h"

constexpr int GROUP_KEYS = 16;  // tokens that lie side by side

// -- writing ---------------------------------------------------------------------------------------------------------------

// Units of K of the token at `place` of its group.
template <int PER_UNIT, class P> static inline void spread_key(const P *from, P *group, int64_t place, int64_t dim) {
    for (int64_t d = 0; d < dim; d += PER_UNIT)
        memcpy(group + d * GROUP_KEYS + place * PER_UNIT, from + d, PER_UNIT * sizeof(P));
}

// K (V where not IS_KEY) of one head of the token at place `token` of its block; `head` is where the head begins in it.
template <bool IS_KEY, class T> static inline void write_head(const T *from, T *head, int64_t token, int64_t dim, bool is_packed) {
    if (IS_KEY && is_packed)
        spread_key<UnitsOf<T>::type::PER_UNIT>(from, head + token / GROUP_KEYS * GROUP_KEYS * dim, token % GROUP_KEYS, dim);
    else
        memcpy(head + token * dim, from, dim * sizeof(T));
}

template <bool IS_KEY, class T, class P>
static inline void write_head(const T *from, P *head, int64_t token, int64_t dim, bool is_packed) {
    P codes[1024];
    const bf16_t scale = write_codes(from, codes, dim);
    const int64_t row = dim + SCALE_BYTES, place = token % GROUP_KEYS;
    P *group = head + (token - place) * row, *scales = group + GROUP_KEYS * dim + place * SCALE_BYTES;
    if (!is_packed) {
        memcpy(head + token * row, codes, dim);
        scales = head + token * row + dim;
    } else if (IS_KEY) {
        spread_key<1>(codes, group, place, dim);
    } else {
        memcpy(group + place * dim, codes, dim);
    }
    memcpy(scales, &scale, SCALE_BYTES);
}

// -- reading ---------------------------------------------------------------------------------------------------------------

// A unit of LANES keys or dimensions that lie side by side; the second half of a pair of codes lies `odd` behind it.
template <class U, class P> static inline vec load_unit(const P *from, int64_t odd) {
    if constexpr (!is_code<P>) {
        return vload((const typename PackedOf<P>::type *)from);
    } else if constexpr (U::PER_UNIT == 1) {
        return vload(from);
    } else {
#if defined(__AVX512BF16__)
        return vload_pairs(from, from + odd);
#endif
    }
}

// The group of keys [k, k + GROUP_KEYS) of a tile, null where none of them is seen; `row` is from a key to the next one.
template <class P> static inline const P *group_of(const P *const *rows, int k, int keys, int64_t row) {
    for (int i = 0; i < GROUP_KEYS && k + i < keys; i++)
        if (rows[k + i]) return rows[k + i] - i * row;
    return nullptr;
}

// As pack_keys of plain pages; a group of which no key is seen becomes zeros.
template <class U, class P> static void copy_keys(const P *const *rows, int keys, int dim, int64_t row, float *packed) {
    for (int k = 0; k < keys; k += GROUP_KEYS) {
        const P *group = group_of(rows, k, keys, row);
        for (int u = 0; u < dim / U::PER_UNIT; u++)
            for (int i = 0; i < GROUP_KEYS; i += LANES)
                vstore(packed + u * TILE + k + i, group ? load_unit<U>(group + u * GROUP_KEYS * U::PER_UNIT + i, GROUP_KEYS) : vset(0));
    }
}

// As pack_values of plain pages, of codes.
template <class U, class P> static void copy_values(const P *const *rows, int keys, int dim, int64_t row, float *packed) {
    for (int k = 0; k < keys; k += GROUP_KEYS) {
        const P *group = group_of(rows, k, keys, row);
        for (int u = 0; u < GROUP_KEYS / U::PER_UNIT; u++)
            for (int d = 0; d < dim; d += LANES) {
                float *to = packed + (k / U::PER_UNIT + u) * dim + d;
                vstore(to, group ? load_unit<U>(group + u * U::PER_UNIT * dim + d, dim) : vset(0));
            }
    }
}

// Scales of the codes of a group of keys.
template <class P> static inline void copy_scales(const P *group, int64_t dim, float *scales) {
    for (int i = 0; i < GROUP_KEYS; i += LANES)
        vstore(scales + i, group ? vload_scales(group + GROUP_KEYS * dim + i * SCALE_BYTES) : vset(0));
}
