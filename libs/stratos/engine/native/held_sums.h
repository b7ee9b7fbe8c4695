// Blocks of rows times whole groups whose sums and totals both stay in registers: pairs of bf16, in the order of the inputs.
//
// A store of a vector takes the place of two products, and every group would store the totals of its rows.  So a block is
// narrow, two vectors of columns, and its totals are stored once in a pass.  A product waits six cycles for the one before
// it and two begin in each: where a block has less than twelve sums, two groups are summed at once.  Rows are laid out
// unit by unit, so that one pointer reads all of a block.  The order of every sum is that of codes.h and k_quants.h.
#pragma once

#include "row_buffer.h"

constexpr int HELD_ROWS = 7;       // of a block, at most: sums and totals fill the registers
constexpr int HELD_LEAST = MAX_ROWS + 1;  // rows of a product: fewer are one block of code_groups.h
constexpr int HELD_VECS = 2;       // vectors of columns
constexpr int HELD_UNITS = 128;    // of a pass, of groups that are no longer: codes and rows stay in the first cache
constexpr int HELD_COLUMNS = HELD_VECS * LANES;

struct HeldRows {  // of a product: rows [begin(b), begin(b + 1)) are block b, and lie as [unit][row of the block]
    const float *units;
    int64_t rows, depth;  // units of a row

    int64_t blocks() const { return (rows + HELD_ROWS - 1) / HELD_ROWS; }
    int64_t begin(int64_t b) const { return rows * b / blocks(); }
    int64_t count(int64_t b) const { return begin(b + 1) - begin(b); }
    const float *block(int64_t b) const { return units + begin(b) * depth; }
};

static void pack_held_block(const float *x, int64_t count, int64_t depth, float *out) {
    for (int64_t u = 0; u < depth; u += LANES) {
        vec of_rows[LANES];
        for (int64_t r = 0; r < LANES; r++) of_rows[r] = r < count ? vload(x + r * depth + u) : vset(0);
        transpose(of_rows);
        for (int64_t i = 0; i < LANES; i++) vstore(out + (u + i) * count, of_rows[i], (int)count);
    }
}

// Called by every thread of a region; ends with a barrier.  `buffer` takes rows * k / 2 floats.
static inline HeldRows held_rows(const bf16_t *x, int64_t rows, int64_t k, float *buffer) {
    const HeldRows all{buffer, rows, k / 2};
#pragma omp for schedule(static)
    for (int64_t b = 0; b < all.blocks(); b++)
        pack_held_block((const float *)(x + all.begin(b) * k), all.count(b), all.depth, buffer + all.begin(b) * all.depth);
    return all;
}

// Adds the products of one unit of the columns and of every row.
template <int ROWS>
__attribute__((always_inline)) static inline void add_column(const vec (&column)[HELD_VECS], const float *x,
                                                             vec (&sums)[ROWS][HELD_VECS]) {
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < HELD_VECS; v++) sums[r][v] = PairUnits::madd(column[v], x[r], sums[r][v]);
}

// `at_once` groups from g on.
template <int ROWS, int AT_ONCE, class Groups, class Ends>
__attribute__((always_inline)) static inline void hold_groups(const Groups &groups, const Ends &ends, int64_t g, int column,
                                                              const float *x, vec (&held)[ROWS][HELD_VECS]) {
    vec sums[AT_ONCE][ROWS][HELD_VECS];
#pragma GCC unroll 2
    for (int t = 0; t < AT_ONCE; t++)
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
            for (int v = 0; v < HELD_VECS; v++) sums[t][r][v] = vset(0);
    groups.template add<ROWS, AT_ONCE>(g, column, x, sums);
#pragma GCC unroll 2
    for (int t = 0; t < AT_ONCE; t++) ends.template hold<ROWS>(g + t, column, sums[t], held);
}

// Adds the `count` groups of a pass to the totals; from -0, which changes no number, where there are none yet.
template <int ROWS, class Groups, class Ends>
__attribute__((noinline)) static void hold_block(const Groups &groups, const Ends &ends, int64_t count, const float *x,
                                                 float *totals) {
    constexpr int AT_ONCE = ROWS > 5 ? 1 : 2;
    for (int c = 0; c < PANEL; c += HELD_COLUMNS) {
        vec held[ROWS][HELD_VECS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
            for (int v = 0; v < HELD_VECS; v++)
                held[r][v] = ends.is_first ? vset(-0.0f) : vload(totals + r * PANEL + c + v * LANES);
        int64_t g = 0;
        for (; g + AT_ONCE <= count; g += AT_ONCE) hold_groups<ROWS, AT_ONCE>(groups, ends, g, c, x, held);
        if (AT_ONCE > 1 && g < count) hold_groups<ROWS, 1>(groups, ends, g, c, x, held);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
            for (int v = 0; v < HELD_VECS; v++) vstore(totals + r * PANEL + c + v * LANES, held[r][v]);
    }
}

// Blocks [first, last) of rows times the `count` groups of a pass, which begin at unit `at`.
template <class Groups, class EndsOfBlock>
static inline void hold_pass(Groups groups, const EndsOfBlock &ends_of, int64_t count, const HeldRows &x, int64_t at,
                             int64_t first, int64_t last, float *totals) {
    for (int64_t b = first; b < last; b++) {
        groups.fetches = b == first;
        const int64_t rows = x.count(b);
        const float *units = x.block(b) + at * rows;
        float *own = totals + (x.begin(b) - x.begin(first)) * PANEL;
        switch (rows) {  // from HELD_LEAST on no block has fewer
            case 4: hold_block<4>(groups, ends_of(b), count, units, own); break;
            case 5: hold_block<5>(groups, ends_of(b), count, units, own); break;
            case 6: hold_block<6>(groups, ends_of(b), count, units, own); break;
            default: hold_block<7>(groups, ends_of(b), count, units, own);
        }
    }
}

// Called by every thread of a region; ends with a barrier.  `hold_panel` makes the totals of a panel and some blocks.
template <class O, class HoldPanel>
static inline void multiply_held_rows(const Linear *l, const HeldRows &x, O *out, const HoldPanel &hold_panel) {
    const int64_t panels = panels_of(l->n), chunks = row_chunks(x.rows, panels), blocks = x.blocks();
    share_panels(l);
#pragma omp for schedule(runtime)
    for (int64_t item = 0; item < panels * chunks; item++) {
        alignas(64) float totals[(CHUNK + 2 * HELD_ROWS) * PANEL];
        const int64_t chunk = item / panels, first = blocks * chunk / chunks, last = blocks * (chunk + 1) / chunks;
        hold_panel(item % panels, first, last, totals);
        store_sums<bf16_t>(l, item % panels, totals, x.begin(last) - x.begin(first), out + x.begin(first) * l->stride);
    }
}

// One line of the lines that are read later, for the second cache.  A loop of the compiler's own prefetches was left out.
static inline void fetch_line(const float *from) { __asm__ volatile("prefetcht1 %0" : : "m"(*from)); }

template <int COUNT> __attribute__((always_inline)) static inline void fetch_lines(const float *from) {
#pragma GCC unroll 4
    for (int i = 0; i < COUNT; i++) fetch_line(from + i * LINE_FLOATS);
}
