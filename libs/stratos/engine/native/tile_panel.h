// Matrix products by tiles: rows are laid out as tiles once for all panels, weights stay in the first cache while the
// rows pass by, and what comes next is fetched.
#pragma once

#include "row_buffer.h"

constexpr int TILE_ROWS = 16, TILE_FLOATS = 256;
constexpr int TILE_DEPTH = 128;                 // units: 32 KiB of a panel
constexpr int TILE_CHUNK = 512;                 // rows of one item, at most
constexpr int64_t CHUNK_FLOATS = 256 * 1024;    // of the rows of one item: what the second cache holds beside the sums

static inline int64_t whole_tiles(int64_t rows) { return (rows + TILE_ROWS - 1) / TILE_ROWS; }

// Rows [whole tiles][steps][16][16 units], zeros after the last row and unit.
static void pack_rows(const bf16_t *x, int64_t rows, int64_t k, float *packed) {
    const int64_t steps = units_of<bf16_t>(k) / TileUnits::STEP, tiles = whole_tiles(rows);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < tiles * TILE_ROWS; row++) {
        float *to = packed + row / TILE_ROWS * steps * TILE_FLOATS + row % TILE_ROWS * TileUnits::STEP;
        const bf16_t *from = x + row * k;
        for (int64_t step = 0; step < steps; step++) {
            const int64_t left = row < rows ? k - step * 32 : 0;
            const __mmask32 given = left >= 32 ? 0xffffffffu : (1u << left) - 1;
            _mm512_storeu_si512(to + step * TILE_FLOATS, _mm512_maskz_loadu_epi16(given, from + step * 32));
        }
    }
}

template <class P>
static void sum_panel(TileScope &scope, const float *weight, int64_t width, int64_t units, const Rows &x, int64_t rows,
                      float *sums) {
    const int columns = computed_columns<TileUnits>(width);
    const int64_t num_blocks = (rows + TileUnits::ROWS - 1) / TileUnits::ROWS;
    const int64_t depth = rows <= TILE_ROWS ? units : TILE_DEPTH;
    Fetch fetch;
    fetch.is_stream = num_blocks == 1;
    fetch.lines = (int)((TileUnits::STEP * PANEL / LANES + 2 * num_blocks - 1) / (2 * num_blocks));
    for (int64_t u = 0; u < units; u += depth) {
        const int count = (int)(units - u < depth ? units - u : depth);
        const int64_t fetched = 2 * (count / TileUnits::STEP) * fetch.lines * LANES;  // floats, for each block
        for (int64_t b = 0; b < num_blocks; b++) {
            const int64_t first = b * TileUnits::ROWS, left = rows - first;
            if (u + depth < units) fetch.next = weight + (u + depth) * width + b * fetched;
            Operands p{weight + u * width, width, x.from(first, u), count, sums + first * PANEL, PANEL};
            accumulate<P>(scope, p, (int)(left < TileUnits::ROWS ? left : TileUnits::ROWS), columns, u == 0, fetch);
        }
    }
}

// One panel times `rows` of at most TILE_CHUNK; where rows are packed, whole tiles of them.
template <class O>
static void multiply_tile_panel(const Linear *l, int64_t panel, const Rows &x, O *out, int64_t rows, bool is_packed) {
    alignas(64) float sums[TILE_CHUNK * PANEL];
    const int64_t units = units_of<bf16_t>(l->k);
    ItemScope<TileUnits> scope;
    const int64_t computed = is_packed ? whole_tiles(rows) * TILE_ROWS : rows;
    const float *weight = (const float *)l->weight + panel * units * PANEL;
    sum_panel<PairProducts>(scope.tiles, weight, width_of(l->n, panel), units, x, computed, sums);
    store_sums<bf16_t>(l, panel, sums, rows, out);
}

// `units` are those of a row.
static inline int64_t chunks_of(int64_t rows, int64_t units, int64_t panels) {
    int64_t most = CHUNK_FLOATS / units / TileUnits::ROWS * TileUnits::ROWS;
    most = most < 128 ? 128 : most > TILE_CHUNK ? TILE_CHUNK : most;
    const int64_t chunks = (rows + most - 1) / most, wanted = (4 * omp_get_num_threads() + panels - 1) / panels;
    const int64_t sensible = rows / 64;  // fewer rows do not pay for reading the weights again
    return chunks > wanted || sensible < chunks ? chunks : wanted < sensible ? wanted : sensible;
}

struct TileItem {  // of the panels and chunks of rows of a product
    int64_t panel, first, rows, computed;  // rows that there are, and whole tiles of them
    TileItem(int64_t item, int64_t panels, int64_t chunks, int64_t all_rows) : panel(item % panels) {
        const int64_t chunk = item / panels, tiles = whole_tiles(all_rows);
        first = tiles * chunk / chunks * TILE_ROWS;
        const int64_t end = tiles * (chunk + 1) / chunks * TILE_ROWS;
        rows = (end < all_rows ? end : all_rows) - first;
        computed = end - first;
    }
};

template <class O> static void multiply_rows(const Linear *l, const bf16_t *x, O *out, int64_t rows) {
    const int64_t panels = panels_of(l->n), k = l->k, units = units_of<bf16_t>(k), steps = units / TileUnits::STEP;
    const bool is_packed = rows > TILE_ROWS || k % (2 * TileUnits::STEP);
    const int64_t chunks = chunks_of(rows, units, panels);
    Rows whole{(const float *)x, k / 2, TileUnits::STEP, TILE_ROWS * k / 2};
    if (is_packed) {
        float *buffer;
#pragma omp single copyprivate(buffer)
        buffer = row_buffer.reserve(whole_tiles(rows) * steps * TILE_FLOATS);
        pack_rows(x, rows, k, buffer);
        whole = Rows{buffer, TileUnits::STEP, TILE_FLOATS, steps * TILE_FLOATS};
    }
    share_panels(l);
#pragma omp for schedule(runtime)
    for (int64_t i = 0; i < panels * chunks; i++) {
        const TileItem item(i, panels, chunks, rows);
        multiply_tile_panel(l, item.panel, whole.from(item.first, 0), out + item.first * l->stride, item.rows, is_packed);
    }
}
