// Products of K-quants and NVFP4 by tiles, as code_tiles.h has them; k_quants.h includes this.
#pragma once

template <int64_t SCHEME>
static void multiply_k_tile_panel(TileScope &scope, const Linear *l, int64_t panel, const Rows &x, const float *row_sums,
                                  int64_t rows, float *totals) {
    constexpr int groups = KQuant<SCHEME>::GROUPS, most = SHORT_STEPS / groups, words = KQuant<SCHEME>::WORDS * PANEL;
    constexpr int64_t gap = groups > 1 ? 8 * PANEL : 0, step_floats = STEP_FLOATS + gap;
    alignas(64) float wide[most * step_floats], scales[most][2 * PANEL];
    for (int i = 0; gap && i < most; i++) memset(wide + i * step_floats + gap, 0, gap * sizeof(float));
    const int64_t steps = l->k / GROUP_STEP;
    const uint32_t *codes = (const uint32_t *)l->weight + panel * steps * words;
    scope.shape(TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS);
    for (int64_t s = 0, count; s < steps; s += count) {
        count = of_pass(steps - s, most);
        for (int64_t i = 0; i < count; i++) {
            prefetch<_MM_HINT_T1>((const float *)codes + (s + i) * words + AHEAD_WORDS, words / LINE_FLOATS);
            k_scales<SCHEME>(l, panel, s + i, scales[i]);
            widen_step<2, SCHEME>(codes + (s + i) * words, gap, wide + i * step_floats);
        }
        const GroupEnds ends{(int)count * groups, scales[0], scales[0] + PANEL, groups > 1 ? PANEL : 2 * PANEL,
                             row_sums + s, steps, s == 0};
        add_short_groups<KQuant<SCHEME>::HAS_MINIMA>(x.from(0, s * TileUnits::STEP), rows, wide,
                                                     GroupPlaces{1, groups > 1}, ends, totals);
    }
}

// Called by every thread of a region; ends with a barrier.
template <class O, int64_t SCHEME> static void multiply_k_codes_by_tiles(const Linear *l, const bf16_t *x, O *out, int64_t rows) {
    const int64_t panels = panels_of(l->n), chunks = chunks_of(rows, l->k / 2, panels), steps = l->k / GROUP_STEP;
    const int64_t held = whole_tiles(rows) * TILE_ROWS, tiled = held * (l->k / 2);
    float *buffer;
#pragma omp single copyprivate(buffer)
    buffer = row_buffer.reserve(tiled + held * steps);
    const Rows whole = tiled_rows(x, rows, l->k, buffer);
    float *row_sums = buffer + tiled;
    if (KQuant<SCHEME>::HAS_MINIMA) {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < held; r++) {
            if (r < rows) sum_steps(x + r * l->k, steps, row_sums + r * steps);
            else memset(row_sums + r * steps, 0, steps * sizeof(float));
        }
    }
    share_panels(l);
#pragma omp for schedule(runtime)
    for (int64_t i = 0; i < panels * chunks; i++) {
        const TileItem item(i, panels, chunks, rows);
        alignas(64) float totals[TILE_CHUNK * PANEL];
        ItemScope<TileUnits> scope;
        multiply_k_tile_panel<SCHEME>(scope.tiles, l, item.panel, whole.from(item.first, 0), row_sums + item.first * steps,
                                      item.computed, totals);
        store_sums<bf16_t>(l, item.panel, totals, item.rows, out + item.first * l->stride);
    }
}
