// Products of codes by tiles.  Some steps of a panel are widened into the first cache and stay there while the rows pass by.
// Of 16 rows and 16 columns the totals stay in registers over those steps: a tile puts the sums of a group aside, and they
// are scaled and added from there.  The order of every sum is that of codes.h and k_quants.h.
#pragma once

constexpr int64_t SHORT_STEPS = 4;  // steps of the tile instruction that are widened together: 16 KiB
constexpr int64_t LONG_STEPS = 8;   // the same of groups that are longer than SHORT_STEPS
constexpr int64_t FEWER_ROWS = 64;  // of a product: up to so many are faster block by block (code_panel.h, k_quants.h)
constexpr int TILE_INPUTS = 2 * TileUnits::STEP, STEP_FLOATS = TileUnits::STEP * PANEL;

struct GroupEnds {  // of groups of at most SHORT_STEPS together
    int groups;                    // one, two or four
    const float *scales, *minima;  // [groups][stride] of the panel's columns; minima are read of K-quants that have some
    int64_t stride;
    const float *row_sums;  // [rows][row_stride], of each group
    int64_t row_stride;
    bool is_first;  // the row's first groups
};

struct GroupPlaces {  // where groups begin that follow one another
    int64_t steps;    // of a group
    bool are_halves;  // two groups have one step's rows, and the 8 units of each lie before and behind 8 of zeros

    int64_t rows(const Rows &x, int g) const { return (are_halves ? g / 2 : g * steps) * x.step_stride; }
    int64_t wide(int g) const { return are_halves ? (g / 2 * 24 + g % 2 * 8) * PANEL : g * steps * STEP_FLOATS; }
};

typedef float TileSums[SHORT_STEPS][TILE_FLOATS];

// A pass over the rows.  Four sums are computed together, a quad: the groups of a block of 16 rows and 16 columns, then those
// of the next columns.  Vectors and tiles take turns: what a tile holds leaves it while the next ones compute, and is added
// a quad later, as it cannot be read before it has left for the cache.
template <int GROUPS, bool HAS_MINIMA> struct GroupPass {
    const GroupEnds &ends;
    int64_t x_stride, x_step, steps, x_places[GROUPS], wide_places[GROUPS];
    alignas(64) TileSums sums[2];

    struct Place {  // of a quad
        uint64_t row, column;
        explicit Place(uint64_t i) : row(i / GROUPS * TILE_ROWS), column(i % GROUPS * (SHORT_STEPS / GROUPS) * TILE_ROWS) {}
    };

    GroupPass(const Rows &x, const GroupPlaces &at, const GroupEnds &e)
        : ends(e), x_stride(x.stride * 4), x_step(x.step_stride), steps(at.steps) {
        for (int g = 0; g < GROUPS; g++) x_places[g] = at.rows(x, g), wide_places[g] = at.wide(g);
    }

    // Sum T begins in the tile of the quad before, which is put aside first.
    template <int T> inline void sum(const float *x, const float *wide, TileSums &before) const {
        constexpr int ROWS = 4 + T % 2, WEIGHTS = 6 + T % 2;
        x += x_places[T % GROUPS], wide += wide_places[T % GROUPS] + T / GROUPS * TILE_ROWS;
        tile_load<ROWS>(x, x_stride);
        tile_load<WEIGHTS>(wide, PANEL * 4);
        tile_store<T>(before[T], TILE_ROWS * 4);
        tile_zero<T>();
        PairProducts::multiply<T, ROWS, WEIGHTS>();
        for (int64_t s = 1; s < steps; s++) {
            tile_load<ROWS>(x += x_step, x_stride);
            tile_load<WEIGHTS>(wide += STEP_FLOATS, PANEL * 4);
            PairProducts::multiply<T, ROWS, WEIGHTS>();
        }
    }

    // Adds sum T to the totals of its block, which stay in registers over the block's groups.
    template <int T> inline void add(const Place &at, const TileSums &from, float *totals, vec held[TILE_ROWS]) const {
        constexpr int G = T % GROUPS, COLUMN = T / GROUPS * TILE_ROWS;
        const vec scale = vload(ends.scales + G * ends.stride + COLUMN + at.column);
        const float *minima = ends.minima + G * ends.stride + COLUMN + at.column, *row_sums = ends.row_sums + G;
        row_sums += HAS_MINIMA ? at.row * ends.row_stride : 0;
        const bool begins = G == 0 && ends.is_first;
        totals += COLUMN;
#pragma GCC unroll 16
        for (int r = 0; r < TILE_ROWS; r++) {
            const vec sum = vload(from[T] + r * TILE_ROWS);
            if (begins) held[r] = vmul(sum, scale);
            else held[r] = vfma(sum, scale, G == 0 ? vload(totals + r * PANEL) : held[r]);
            if (HAS_MINIMA) held[r] = vfma(vset(row_sums[r * ends.row_stride]), vload(minima), held[r]);
            if (G == GROUPS - 1) vstore(totals + r * PANEL, held[r]);
        }
    }

    // Quad `i` is computed, the one before it put aside, and the one before that added.
    template <bool ADDS, bool SUMS> inline void turn(uint64_t i, const Rows &x, const float *wide, float *totals) {
        const Place now(i), old(i - 2);
        const float *rows = x.floats + now.row / TILE_ROWS * x.tile_stride, *weights = wide + now.column;
        float *added = totals + old.row * PANEL + old.column;
        TileSums &before = sums[(i + 1) % 2];
        const TileSums &oldest = sums[i % 2];
        vec held[TILE_ROWS];
        if (ADDS) add<0>(old, oldest, added, held);
        if (SUMS) sum<0>(rows, weights, before); else tile_store<0>(before[0], TILE_ROWS * 4);
        if (ADDS) add<1>(old, oldest, added, held);
        if (SUMS) sum<1>(rows, weights, before); else tile_store<1>(before[1], TILE_ROWS * 4);
        if (ADDS) add<2>(old, oldest, added, held);
        if (SUMS) sum<2>(rows, weights, before); else tile_store<2>(before[2], TILE_ROWS * 4);
        if (ADDS) add<3>(old, oldest, added, held);
        if (SUMS) sum<3>(rows, weights, before); else tile_store<3>(before[3], TILE_ROWS * 4);
    }

    void run(const Rows &x, uint64_t rows, const float *wide, float *totals) {
        const uint64_t quads = rows / TILE_ROWS * GROUPS;
        for (uint64_t i = 0; i < 2; i++) turn<false, true>(i, x, wide, totals);
        for (uint64_t i = 2; i < quads; i++) turn<true, true>(i, x, wide, totals);
        for (uint64_t i = quads; i < quads + 2; i++) turn<true, false>(i, x, wide, totals);
    }
};

// Adds groups of a panel to the totals of whole tiles of rows, two at least.
template <bool HAS_MINIMA>
static void add_short_groups(const Rows &x, int64_t rows, const float *wide, const GroupPlaces &at, const GroupEnds &ends,
                             float *totals) {
    if (ends.groups == 4) return GroupPass<4, HAS_MINIMA>(x, at, ends).run(x, rows, wide, totals);
    if (ends.groups == 2) return GroupPass<2, HAS_MINIMA>(x, at, ends).run(x, rows, wide, totals);
    GroupPass<1, HAS_MINIMA>(x, at, ends).run(x, rows, wide, totals);
}

// How many of `left` groups, or steps of K-quants, a pass takes.
static inline int64_t of_pass(int64_t left, int64_t most) {
    while (most > left) most /= 2;
    return most;
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
    for (int64_t g = 0, count; g < groups; g += count) {
        count = of_pass(groups - g, most);
        for (int64_t i = 0; i < count; i++)
            widen_group<SCHEME>(l, panel, g + i, (g + i) * l->group, l->group, wide + i * steps * STEP_FLOATS);
        const float *of_groups = scales + g * PANEL;
        const GroupEnds ends{(int)count, of_groups, of_groups, PANEL, of_groups, 0, g == 0};
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
    share_panels(l);
#pragma omp for schedule(runtime)
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
