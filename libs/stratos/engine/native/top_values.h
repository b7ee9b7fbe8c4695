// The most likely tokens of a row, without sorting it: the largest of each block say where to look.
#pragma once

#include <algorithm>

#include "noise.h"

struct Tops {       // scratch of one row
    float *blocks;  // [vocab / UNIT + 1], the largest of each block
    float *values;  // [vocab]
    int32_t *ids;   // [vocab]
};

// Finds the largest logit of each block, and of the row; false where one is not finite.
static inline bool find_blocks(const float *x, int64_t n, Tops tops, float *most) {
    vec zeros = vset(0);
    *most = -INFINITY;
    for (int64_t begin = 0; begin < n; begin += UNIT) {
        vec best = vset(-INFINITY);
        for (int64_t i = begin; i < std::min(begin + UNIT, n); i += LANES) {
            vec v = load_row(x, i, n, x[0]);
            zeros = vfma(v, vset(0), zeros);  // x * 0 is 0 where x is finite, else NaN
            best = vmax(best, load_row(x, i, n, -INFINITY));
        }
        float block = tops.blocks[begin / UNIT] = vmaximum(best);
        *most = block > *most ? block : *most;
    }
    return vsum(zeros) == 0.0f;
}

// The first token of the value `most`, the row's largest.
static inline int64_t first_of(const float *x, int64_t n, float most, Tops tops) {
    int64_t begin = 0;
    while (tops.blocks[begin / UNIT] != most) begin += UNIT;
    for (int64_t i = begin; i < std::min(begin + UNIT, n); i++)
        if (x[i] == most) return i;
    return begin;
}

// Whether at most `limit` blocks have a token from `least` on: then few are to be collected.
static inline bool are_few(int64_t n, float least, int64_t limit, Tops tops) {
    int64_t count = 0;
    for (int64_t block = 0; block < (n + UNIT - 1) / UNIT; block++) count += tops.blocks[block] >= least;
    return count <= limit;
}

// Appends the tokens of the block from `begin` whose logits lie in [least, most].
static inline int64_t append(
    const float *x, int64_t begin, int64_t n, float least, float most, Tops tops, int64_t count) {
    int64_t end = std::min(begin + UNIT, n);
#if defined(__AVX512F__)
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int64_t i = begin; i < end; i += LANES) {  // whole vectors are stored: they end within what is padded
        vec v = load_row(x, i, n, -INFINITY);
        __mmask16 kept = first_lanes((int)std::min<int64_t>(LANES, end - i));
        kept = _mm512_mask_cmp_ps_mask(kept, v, vset(least), _CMP_GE_OQ);
        kept = _mm512_mask_cmp_ps_mask(kept, v, vset(most), _CMP_LE_OQ);
        vstore(tops.values + count, _mm512_maskz_compress_ps(kept, v));
        __m512i ids = _mm512_add_epi32(_mm512_set1_epi32((int)i), lanes);
        _mm512_storeu_si512(tops.ids + count, _mm512_maskz_compress_epi32(kept, ids));
        count += __builtin_popcount(kept);
    }
#else
    for (int64_t i = begin; i < end; i++) {
        tops.ids[count] = (int32_t)i;
        tops.values[count] = x[i];
        count += (x[i] >= least) & (x[i] <= most);
    }
#endif
    return count;
}

// Collects the tokens from `least` to `most`, by id; returns how many there are.
static inline int64_t collect(const float *x, int64_t n, float least, Tops tops, float most = INFINITY) {
    int64_t count = 0;
    for (int64_t begin = 0; begin < n; begin += UNIT)
        if (tops.blocks[begin / UNIT] >= least) count = append(x, begin, n, least, most, tops, count);
    return count;
}

// Logits of one bin share sign, exponent and three bits of the mantissa, so bins are in the order of logits.
constexpr int BIN_SHIFT = 20, NUM_BINS = 1 << (32 - BIN_SHIFT), NUM_COUNTS = 4;
constexpr int64_t FEWEST_FOR_BINS = NUM_BINS * NUM_COUNTS;  // the counts lie where `ids` are collected later

static inline int32_t bin_of(float x) { return ((int32_t)ordered(x + 0.0f) >> BIN_SHIFT) + NUM_BINS / 2; }  // -0 is 0

// The least and the largest logit that a bin may hold; beyond infinity lie bit patterns that are no numbers.
static inline void bounds_of(int64_t bin, float *least, float *most) {
    int64_t first = (bin - NUM_BINS / 2) * (1 << BIN_SHIFT), last = first + (1 << BIN_SHIFT) - 1;
    *least = from_ordered((int32_t)std::max(first, ordered(-INFINITY)));
    *most = from_ordered((int32_t)std::min(last == ordered(-0.0f) ? last - 1 : last, ordered(INFINITY)));
}

// Finds the bounds of the bin that holds the value at place `count`; returns how many logits lie above it.
static inline int64_t find_bin(const float *x, int64_t n, int64_t count, Tops tops, float *least, float *most) {
    int32_t *counts = tops.ids;
    memset(counts, 0, FEWEST_FOR_BINS * sizeof(int32_t));
    for (int64_t begin = 0; begin < n; begin += UNIT) {
        int32_t bins[UNIT], size = (int32_t)std::min(UNIT, n - begin);
        for (int i = 0; i < size; i++) bins[i] = bin_of(x[begin + i]);
        for (int i = 0; i < size; i++) counts[i % NUM_COUNTS * NUM_BINS + bins[i]]++;  // one waits for no neighbour
    }
    for (int64_t bin = NUM_BINS - 1, above = 0;; bin--) {
        int64_t here = 0;
        for (int part = 0; part < NUM_COUNTS; part++) here += counts[part * NUM_BINS + bin];
        if (above + here >= count || bin == 0) {
            bounds_of(bin, least, most);
            return above;
        }
        above += here;
    }
}

// The value at place `count`, from 1, of the row in falling order.  `collect` of less than a block's largest is cheap
// since `count` blocks have something from the `count`-th largest of them on; where more are wanted than there are
// blocks, logits are counted by bin, and only those of one bin are looked at.
static inline float value_at(const float *x, int64_t n, int64_t count, Tops tops) {
    int64_t num_blocks = (n + UNIT - 1) / UNIT;
    float least = -INFINITY, most = INFINITY;
    auto falling = [](float a, float b) { return a > b; };
    if (count <= num_blocks) {
        memcpy(tops.values, tops.blocks, num_blocks * sizeof(float));
        std::nth_element(tops.values, tops.values + count - 1, tops.values + num_blocks, falling);
        least = tops.values[count - 1];
    } else if (n >= FEWEST_FOR_BINS) {
        count -= find_bin(x, n, count, tops, &least, &most);
    }
    int64_t found = collect(x, n, least, tops, most);
    std::nth_element(tops.values, tops.values + count - 1, tops.values + found, falling);
    return tops.values[count - 1];
}
