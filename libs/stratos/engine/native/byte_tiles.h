// Products of bytes by tiles, four of a row times four of a column a lane: the sums of integers.h, which includes this.
// Weights lie as the vectors read them, units of whole steps; rows are laid out as tiles when they are cut.
#pragma once

constexpr int64_t LEAST_TILE_ROWS = 4;  // of a product: fewer are as fast by vectors

static inline bool takes_byte_tiles(const Linear *l, int64_t rows) {
    return l->tile_rows >= 0 && rows >= (l->tile_rows ? l->tile_rows : LEAST_TILE_ROWS);
}

// Called by every thread of a region; ends with a barrier.
template <class T, class O, int64_t SCHEME>
static void multiply_byte_tiles(const Linear *l, const ByteRows &all, const T *x, O *out, int64_t rows) {
    const int64_t panels = panels_of(l->n), units = byte_units_of(l->k), chunks = chunks_of(rows, units, panels);
    const Rows whole{(const float *)all.units, all.stride, all.step_stride, all.tile_stride};
    share_panels(l);
#pragma omp for schedule(runtime)
    for (int64_t i = 0; i < panels * chunks; i++) {
        const TileItem item(i, panels, chunks, rows);
        alignas(64) int32_t sums[TILE_CHUNK * PANEL];
        TileScope scope;
        sum_panel<ByteProducts>(scope, (const float *)byte_panel(l, item.panel), PANEL, units, whole.from(item.first, 0),
                                item.computed, (float *)sums);
        store_byte_sums<T, O, SCHEME>(l, item.panel, all.from(item.first), x + item.first * l->k, sums,
                                      out + item.first * l->stride, item.rows);
    }
}
