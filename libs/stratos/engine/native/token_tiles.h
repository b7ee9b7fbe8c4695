// Products of a tile for a row of one token by tile instructions, or their twin.
//
// K is read where it lies in packed pages: 16 keys and 32 dimensions are one tile.  V is put into pairs of keys first,
// for which the first cache is enough, and so are codes.  Fetching K of the next tile ahead gained nothing here.
#pragma once

#if defined(STRATOS_TILE_ORDER)

static inline const float *units_at(const bf16_t *group, int64_t unit) {
    return (const float *)group + unit * GROUP_KEYS;
}

#if defined(__AMX_BF16__)
constexpr int GROUP_BYTES = GROUP_KEYS * 4;  // of one unit

template <int GROUPS>  // 2 or 4
static inline void score_tiles(const TileGroups<bf16_t> &keys, const float *query, int64_t dim, float *scores) {
    tiles_zero();
    for (int u = 0; u < dim / TileUnits::PER_UNIT; u += TileUnits::STEP) {
        tile_load<4>(query + u, dim * 4);
        tile_load<5>(units_at(keys.now[0], u), GROUP_BYTES), PairProducts::multiply<0, 4, 5>();
        tile_load<6>(units_at(keys.now[1], u), GROUP_BYTES), PairProducts::multiply<1, 4, 6>();
        if (GROUPS == 2) continue;
        tile_load<7>(units_at(keys.now[2], u), GROUP_BYTES), PairProducts::multiply<2, 4, 7>();
        tile_load<5>(units_at(keys.now[3], u), GROUP_BYTES), PairProducts::multiply<3, 4, 5>();
    }
    tile_store<0>(scores, TILE * 4), tile_store<1>(scores + GROUP_KEYS, TILE * 4);
    if (GROUPS == 2) return;
    tile_store<2>(scores + 2 * GROUP_KEYS, TILE * 4), tile_store<3>(scores + 3 * GROUP_KEYS, TILE * 4);
}

static void score_rows(ItemScope<TileUnits> &scope, const TileGroups<bf16_t> &keys, int num_groups, int rows,
                       const float *query, int64_t dim, float *scores, float *) {
    scope.tiles.shape(rows, rows, rows, 16);
    if (num_groups == 2) return score_tiles<2>(keys, query, dim, scores);
    score_tiles<4>(keys, query, dim, scores);
}
#else
static void score_rows(ItemScope<TileUnits> &, const TileGroups<bf16_t> &keys, int num_groups, int rows,
                       const float *query, int64_t dim, float *scores, float *) {
    const Rows all{query, dim, TileUnits::STEP, 16 * dim};
    for (int g = 0; g < num_groups; g++) {
        Operands p{units_at(keys.now[g], 0), GROUP_KEYS, all, (int)(dim / 2), scores + g * GROUP_KEYS, TILE};
        accumulate_by_vectors(p, rows, GROUP_KEYS, true);
    }
}
#endif

// Codes are widened first.
template <class P>
static void score_rows(ItemScope<TileUnits> &scope, const TileGroups<P> &keys, int num_groups, int rows,
                       const float *query, int64_t dim, float *scores, float *units) {
    const int num_units = (int)(dim / TileUnits::PER_UNIT);
    for (int g = 0; g < num_groups; g++)
        for (int u = 0; u < num_units; u++) {
            const int64_t at = u * GROUP_KEYS * TileUnits::PER_UNIT;
            if (at % 64 == 0) fetch(keys.next[g] + at);
            vstore(units + u * TILE + g * GROUP_KEYS, load_unit<TileUnits>(keys.now[g] + at, GROUP_KEYS));
        }
    multiply<TileUnits>(scope, rows, units, TILE, query, dim, num_units, scores, TILE, nullptr, num_groups * GROUP_KEYS,
                        Fetch());
}

// V of the groups as units [pair of keys][dim], dimensions in the order of ValueColumns.
template <class P>
static inline void pair_values(const TileGroups<P> &values, int num_groups, int64_t dim, float *units) {
    for (int g = 0; g < num_groups; g++)
        for (int key = 0; key < GROUP_KEYS; key += 2, units += dim)
            for (int64_t d = 0; d < dim; d += 2 * LANES) {
                const int64_t at = key * dim;
                fetch(values.next[g] + at + d), fetch(values.next[g] + at + dim + d);
                vec column[2];
                ValueColumns<P, TileUnits, 2>::load(values.now[g] + at, d, dim, column);
                vstore(units + d, column[0]), vstore(units + d + LANES, column[1]);
            }
}

template <class P>
static void add_rows(ItemScope<TileUnits> &scope, const TileGroups<P> &values, int num_groups, int rows, int64_t dim, const float *weights, const float *factors, float *out, float *units) {
    pair_values(values, num_groups, dim, units);
    multiply<TileUnits>(scope, rows, units, dim, weights, TILE, num_groups * GROUP_KEYS / 2, out, dim, factors, (int)dim,
                        Fetch());
}

#endif  // STRATOS_TILE_ORDER
