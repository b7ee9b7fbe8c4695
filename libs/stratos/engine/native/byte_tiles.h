// Products of bytes by tiles, four of a row times four of a column a lane: the sums of integers.h, which includes this.
// Weights lie as the vectors read them, units of whole steps; rows are laid out as tiles when they are cut.
#pragma once

constexpr int64_t LEAST_TILE_ROWS = 4;  // of a product: fewer are as fast by vectors

static inline bool takes_byte_tiles(const Linear *l, int64_t rows) {
    return l->tile_rows >= 0 && rows >= (l->tile_rows ? l->tile_rows : LEAST_TILE_ROWS);
}

template <class T, class O, int64_t SCHEME>
static void multiply_byte_tile_panel(const Linear *l, int64_t panel, const ByteRows &x, const T *given, O *out, int64_t rows) {
    alignas(64) int32_t sums[TILE_CHUNK * PANEL];
    TileScope scope;
    const Rows tiles{(const float *)x.units, x.stride, x.step_stride, x.tile_stride};
    const int64_t computed = (rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    sum_panel<ByteProducts>(scope, (const float *)byte_panel(l, panel), byte_units_of(l->k), tiles, computed, (float *)sums);
    store_byte_sums<T, O, SCHEME>(l, panel, x, given, sums, out, rows);
}

// Called by every thread of a region; ends with a barrier.
template <class T, class O, int64_t SCHEME>
static void multiply_byte_tiles(const Linear *l, const ByteRows &all, const T *x, O *out, int64_t rows) {
    const int64_t panels = panels_of(l->n), tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const int64_t chunks = chunks_of(rows, byte_units_of(l->k), panels);
#pragma omp for schedule(dynamic, 1)
    for (int64_t item = 0; item < panels * chunks; item++) {
        const int64_t chunk = item / panels, first = tiles * chunk / chunks * TILE_ROWS;
        const int64_t end = tiles * (chunk + 1) / chunks * TILE_ROWS, last = end < rows ? end : rows;
        multiply_byte_tile_panel<T, O, SCHEME>(l, item % panels, all.from(first), x + first * l->k,
                                               out + first * l->stride, last - first);
    }
}
