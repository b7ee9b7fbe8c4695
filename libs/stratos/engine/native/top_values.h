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

// Collects the tokens from `least` on, by id; returns how many there are.
static inline int64_t collect(const float *x, int64_t n, float least, Tops tops) {
    int64_t count = 0;
    for (int64_t begin = 0; begin < n; begin += UNIT) {
        if (!(tops.blocks[begin / UNIT] >= least)) continue;
        int64_t end = std::min(begin + UNIT, n);
        for (int64_t i = begin; i < end; i++) {
            tops.ids[count] = (int32_t)i;
            tops.values[count] = x[i];
            count += x[i] >= least;
        }
    }
    return count;
}

// The value at place `count`, from 1, of the row in falling order.  `collect` of less than a block's largest is cheap
// since `count` blocks have something from the `count`-th largest of them on.
static inline float value_at(const float *x, int64_t n, int64_t count, Tops tops) {
    int64_t num_blocks = (n + UNIT - 1) / UNIT;
    float least = -INFINITY;
    auto falling = [](float a, float b) { return a > b; };
    if (count <= num_blocks) {
        memcpy(tops.values, tops.blocks, num_blocks * sizeof(float));
        std::nth_element(tops.values, tops.values + count - 1, tops.values + num_blocks, falling);
        least = tops.values[count - 1];
    }
    int64_t found = collect(x, n, least, tops);
    std::nth_element(tops.values, tops.values + count - 1, tops.values + found, falling);
    return tops.values[count - 1];
}
