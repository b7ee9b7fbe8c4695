// Products of codes by tiles.  Some steps of a panel are widened into the first cache and stay there while the rows pass by.
// Of 16 rows and 16 columns the totals stay in registers over those steps: a tile puts the sums of a group aside, and they
// are scaled and added from there.  The order of every sum is that of codes.h and k_quants.h.
#pragma once

constexpr int64_t SHORT_STEPS = 4;  // steps of the tile instruction that are widened together: 16 KiB
constexpr int64_t LONG_STEPS = 8;   // the same of groups that are longer than SHORT_STEPS
constexpr int64_t FEWER_ROWS = 64;  // of a product: up to so many are faster block by block (code_panel.h, k_quants.h)
constexpr int TILE_INPUTS = 2 * TileUnits::STEP, STEP_FLOATS = TileUnits::STEP * PANEL;

struct GroupEnds {  // of groups of at most SHORT_STEPS together
    int groups;
    const float *scales, *minima;  // [groups][stride] of the panel's columns; minima are read of K-quants that have some
    int64_t stride;
    const float *row_sums;  // [rows][row_stride], of each group
    int64_t row_stride;
    bool is_first;  // the row's first groups
    GroupEnds from(int64_t row, int64_t column) const {
        return GroupEnds{groups, scales + column, minima + column, stride, row_sums + row * row_stride, row_stride, is_first};
    }
};

struct GroupPlaces {  // where groups begin that follow one another
    int64_t steps;    // of a group
    bool are_halves;  // two groups have one step's rows, and the 8 units of each lie before and behind 8 of zeros

    const float *rows(const Rows &x, int g) const { return x.floats + (are_halves ? g / 2 : g * steps) * x.step_stride; }
    const float *wide(const float *first, int g) const {
        return first + (are_halves ? (g / 2 * 24 + g % 2 * 8) * PANEL : g * steps * STEP_FLOATS);
    }
};

template <int SUMS>
static inline void sum_group(const float *x, const Rows &rows, const float *wide, int64_t steps) {
    constexpr int WEIGHTS = 5 + SUMS % 3;
    tile_zero<SUMS>();
    for (int64_t s = 0; s < steps; s++, x += rows.step_stride, wide += STEP_FLOATS) {
        tile_load<4>(x, rows.stride * 4);
        tile_load<WEIGHTS>(wide, PANEL * 4);
        PairProducts::multiply<SUMS, 4, WEIGHTS>();
    }
}

template <bool HAS_MINIMA>
static inline vec add_group(vec total, const float *sums, const GroupEnds &ends, int g, int64_t row) {
    const vec sum = vload(sums), scale = vload(ends.scales + g * ends.stride);
    total = ends.is_first && g == 0 ? vmul(sum, scale) : vfma(sum, scale, total);
    if (!HAS_MINIMA) return total;
    return vfma(vset(ends.row_sums[row * ends.row_stride + g]), vload(ends.minima + g * ends.stride), total);
}

typedef float TileSums[SHORT_STEPS][TILE_FLOATS];

// Sums of 16 rows and 16 columns, each group's in a tile of its own.
static inline void sum_groups(const Rows &x, const float *wide, const GroupPlaces &at, int groups) {
    sum_group<0>(at.rows(x, 0), x, at.wide(wide, 0), at.steps);
    if (groups > 1) sum_group<1>(at.rows(x, 1), x, at.wide(wide, 1), at.steps);
    if (groups > 2) sum_group<2>(at.rows(x, 2), x, at.wide(wide, 2), at.steps);
    if (groups > 3) sum_group<3>(at.rows(x, 3), x, at.wide(wide, 3), at.steps);
}

static inline void put_aside(int groups, TileSums &sums) {
    tile_store<0>(sums[0], TILE_ROWS * 4);
    if (groups > 1) tile_store<1>(sums[1], TILE_ROWS * 4);
    if (groups > 2) tile_store<2>(sums[2], TILE_ROWS * 4);
    if (groups > 3) tile_store<3>(sums[3], TILE_ROWS * 4);
}

template <bool HAS_MINIMA> static inline void add_groups(const TileSums &sums, const GroupEnds &ends, float *totals) {
    vec held[TILE_ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < TILE_ROWS; r++) held[r] = ends.is_first ? vset(0) : vload(totals + r * PANEL);
    for (int g = 0; g < ends.groups; g++)
#pragma GCC unroll 16
        for (int r = 0; r < TILE_ROWS; r++) held[r] = add_group<HAS_MINIMA>(held[r], sums[g] + r * TILE_ROWS, ends, g, r);
#pragma GCC unroll 16
    for (int r = 0; r < TILE_ROWS; r++) vstore(totals + r * PANEL, held[r]);
}

// Adds groups of a panel to the totals of whole tiles of rows.  What tiles put aside is added while the next ones compute:
// it cannot be read before it has left for the cache.
template <bool HAS_MINIMA>
static void add_short_groups(const Rows &x, int64_t rows, const float *wide, const GroupPlaces &at, const GroupEnds &ends,
                             float *totals) {
    alignas(64) TileSums sums;
    for (int64_t row = 0, before = 0; row < rows; before = row, row += TILE_ROWS)
        for (int64_t column = 0; column < PANEL; column += TILE_ROWS) {
            if (row + TILE_ROWS < rows) {  // a part of the next rows
                prefetch<_MM_HINT_T0>(x.at(row + TILE_ROWS, column), TILE_ROWS);
                prefetch<_MM_HINT_T0>(totals + (row + TILE_ROWS) * PANEL + column * TILE_ROWS, TILE_ROWS);
            }
            sum_groups(x.from(row, 0), wide + column, at, ends.groups);
            const int64_t last_row = column ? row : before, last_column = (column ? column : PANEL) - TILE_ROWS;
            if (row + column)
                add_groups<HAS_MINIMA>(sums, ends.from(last_row, last_column), totals + last_row * PANEL + last_column);
            put_aside(ends.groups, sums);
        }
    const int64_t last = rows - TILE_ROWS, column = PANEL - TILE_ROWS;
    add_groups<HAS_MINIMA>(sums, ends.from(last, column), totals + last * PANEL + column);
}

template <int64_t SCHEME>
static inline void widen_group(const Linear *l, int64_t panel, int64_t group, int64_t begin, int64_t inputs, float *wide) {
    const uint32_t *words = (const uint32_t *)l->weight + (panel * l->k + begin) / codes_of_word(SCHEME) * PANEL;
    const int64_t at = (panel * (l->k / l->group) + group) * PANEL;
    ivec zeros[STRIP];
    for (int v = 0; v < STRIP; v++) zeros[v] = zeros_of(l, at + v * LANES, 2);
    widen<2, SCHEME, CodeBlock<TileUnits, SCHEME>::AHEAD>(words, zeros, (int)(inputs / 2), wide);
}

template <int64_t SCHEME>
static void multiply_short_groups(TileScope &scope, const Linear *l, int64_t panel, const Rows &x, int64_t rows, float *totals) {
    alignas(64) float wide[SHORT_STEPS * STEP_FLOATS];
    const int64_t groups = l->k / l->group, steps = l->group / TILE_INPUTS, most = SHORT_STEPS / steps;
    const float *scales = l->scales + panel * groups * PANEL;
    scope.shape(TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS);
    for (int64_t g = 0; g < groups; g += most) {
        const int count = (int)(groups - g < most ? groups - g : most);
        for (int i = 0; i < count; i++)
            widen_group<SCHEME>(l, panel, g + i, (g + i) * l->group, l->group, wide + i * steps * STEP_FLOATS);
        const float *of_groups = scales + g * PANEL;
        const GroupEnds ends{count, of_groups, of_groups, PANEL, of_groups, 0, g == 0};
        add_short_groups<false>(x.from(0, g * l->group / 2), rows, wide, GroupPlaces{steps, false}, ends, totals);
    }
}

static inline void add_rows(const float *raw, const GroupEnd &end, int64_t rows, float *totals) {
    for (int64_t r = 0; r < rows; r++) {
        vec sums[1][STRIP];
        for (int v = 0; v < STRIP; v++) sums[0][v] = vload(raw + r * PANEL + v * LANES);
        end_group<1>(sums, end, nullptr, totals + r * PANEL);
    }
}

template <int64_t SCHEME>
static void multiply_long_groups(TileScope &scope, const Linear *l, int64_t panel, const Rows &x, int64_t rows, float *totals) {
    alignas(64) float wide[LONG_STEPS * STEP_FLOATS], raw[TILE_CHUNK * PANEL];
    const int64_t groups = l->k / l->group, depth = LONG_STEPS * TILE_INPUTS;
    for (int64_t g = 0; g < groups; g++) {
        const int64_t begin = g * l->group, end = begin + l->group;
        for (int64_t at = begin; at < end; at += depth) {
            const int64_t inputs = end - at < depth ? end - at : depth;
            widen_group<SCHEME>(l, panel, g, at, inputs, wide);
            for (int64_t r = 0; r < rows; r += TileUnits::ROWS) {
                const Operands p{wide, PANEL, x.from(r, at / 2), (int)(inputs / 2), raw + r * PANEL, PANEL};
                accumulate(scope, p, (int)(rows - r < TileUnits::ROWS ? rows - r : TileUnits::ROWS), PANEL, at == begin);
            }
        }
        const GroupEnd end_of{l->scales + (panel * groups + g) * PANEL, g == 0};
        add_rows(raw, end_of, rows, totals);
    }
}

// Rows as tiles, by every thread of a region.
static inline Rows tiled_rows(const bf16_t *x, int64_t rows, int64_t k, float *buffer) {
    pack_rows(x, rows, k, buffer);
    return Rows{buffer, TileUnits::STEP, TILE_FLOATS, TILE_ROWS * (k / 2)};
}

// Called by every thread of a region; ends with a barrier.
template <class O, int64_t SCHEME> static void multiply_codes_by_tiles(const Linear *l, const bf16_t *x, O *out, int64_t rows) {
    const int64_t panels = panels_of(l->n), chunks = chunks_of(rows, l->k / 2, panels);
    float *buffer;
#pragma omp single copyprivate(buffer)
    buffer = row_buffer.reserve(whole_tiles(rows) * TILE_ROWS * (l->k / 2));
    const Rows whole = tiled_rows(x, rows, l->k, buffer);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < panels * chunks; i++) {
        const TileItem item(i, panels, chunks, rows);
        const Rows own = whole.from(item.first, 0);
        alignas(64) float totals[TILE_CHUNK * PANEL];
        ItemScope<TileUnits> scope;
        if (l->group > SHORT_STEPS * TILE_INPUTS)
            multiply_long_groups<SCHEME>(scope.tiles, l, item.panel, own, item.computed, totals);
        else
            multiply_short_groups<SCHEME>(scope.tiles, l, item.panel, own, item.computed, totals);
        store_sums<bf16_t>(l, item.panel, totals, item.rows, out + item.first * l->stride);
    }
}
