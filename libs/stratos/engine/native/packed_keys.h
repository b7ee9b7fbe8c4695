// K as it lies in pages that are packed: [kv_head][16 tokens][unit of head_dim][token], a unit as tiles.h says.
//
// A vector of the pages is one unit of several keys, which is what S = Q K reads, so nothing is turned round when K is
// read; a new token's K is written in pieces of one unit.  V and the order of everything else are those of plain pages.
#pragma once

#include "tiles.h"

constexpr int GROUP_KEYS = 16;  // tokens that lie side by side

// K of one head of the token at place `token` of its block; `keys` is where the head begins in that block.
template <class T> static inline void write_key(const T *from, T *keys, int64_t token, int64_t dim) {
    typedef typename UnitsOf<T>::type U;
    T *group = keys + token / GROUP_KEYS * GROUP_KEYS * dim + token % GROUP_KEYS * U::PER_UNIT;
    for (int64_t d = 0; d < dim; d += U::PER_UNIT) memcpy(group + d * GROUP_KEYS, from + d, U::PER_UNIT * sizeof(T));
}

// As pack_keys of plain pages; a group of which no key is seen becomes zeros.
template <class T, class U> static void copy_keys(const T *const *rows, int keys, int dim, float *packed) {
    typedef typename PackedOf<T>::type P;
    const int units = dim / U::PER_UNIT;
    for (int k = 0; k < keys; k += GROUP_KEYS) {
        const P *group = nullptr;
        for (int i = 0; i < GROUP_KEYS && k + i < keys && !group; i++)
            if (rows[k + i]) group = (const P *)(rows[k + i] - i * dim);
        for (int u = 0; u < units; u++)
            for (int i = 0; i < GROUP_KEYS; i += LANES)
                vstore(packed + u * TILE + k + i, group ? vload(group + u * GROUP_KEYS + i) : vset(0));
    }
}
