// The draw of one row's token: weights of its tokens, and the best of their logits and noise.
//
// A token is the argmax of its scaled logit plus noise, both added in float64.  Almost no token needs that: with Z the
// sum of the weights exp(scaled), the best sum is about log Z, so only tokens whose noise may bring them to a guess a
// little below are added up, some ten of a row (`Draw::best`).  Logarithms are taken of nothing else.
#pragma once

#include <algorithm>

#include "noise.h"

static constexpr float LARGEST = 3.4028235e38f;
static constexpr double FIRST_GUESS = 2.5, NEXT_GUESS = 4.0;  // below log Z: the first one is too high once in 200,000

struct Draw {  // one row after its edits
    const float *x;
    int64_t n;
    float most, temperature, least;
    Key key;

    float scaled(float logit) const { return (logit - most) / temperature; }

    // Weights of all tokens into `weights`, 0 in its padding; returns their sum.
    template <bool IS_SCALED> double weigh_row(float *weights) const {
        Sum sum;
        for (int64_t begin = 0; begin < padded(n); begin += UNIT) {
            for (int64_t i = begin; i < begin + UNIT; i += LANES) {
                vec s = vsub(load_row(x, i, n, -INFINITY), vset(most));
                if (IS_SCALED) s = vdiv(s, vset(temperature));
                vstore(weights + i, where_from(s, vset(least), weight_of(s)));
            }
            for (int64_t i = begin; i < begin + UNIT; i += 16) sum.add(weights + i);
        }
        return sum.total();
    }

    double weigh(float *weights) const { return temperature == 1.0f ? weigh_row<false>(weights) : weigh_row<true>(weights); }

    // Sum of the weights of tokens from the logit `floor` on.
    double weight_from(const float *weights, float floor) const {
        Sum sum;
        float kept[UNIT];
        for (int64_t begin = 0; begin < n; begin += UNIT) {
            for (int64_t i = 0; i < UNIT; i += LANES)
                vstore(kept + i, where_from(load_row(x, begin + i, n, -INFINITY), vset(floor), vload(weights + begin + i)));
            for (int64_t i = 0; i < UNIT; i += 16) sum.add(kept + i);
        }
        return sum.total();
    }

    // The lowest logit that scales to `bound` or more, or to more than `bound`; scaling keeps the order of logits.
    float floor_of(float bound, bool is_above) const {
        int64_t low = ordered(-INFINITY), high = ordered(most);
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            float s = scaled(from_ordered((int32_t)middle));
            if (is_above ? s > bound : s >= bound)
                high = middle;
            else
                low = middle + 1;
        }
        return from_ordered((int32_t)low);
    }

    double noisy(int64_t token, uint32_t hash) const { return (double)scaled(x[token]) + gumbel(hash); }

    // The best of the tokens from the logit `floor` on, whose weights sum up to `mass`.
    int64_t best(const float *weights, float floor, double mass) const {
        for (double guess = log(mass) - FIRST_GUESS;; guess -= NEXT_GUESS) {
            double value = -INFINITY;
            int64_t token = best_from(weights, floor, guess, &value);
            if (token >= 0 && value >= guess) return token;
        }
    }

    // The best of all tokens whose sum may reach `guess`, -1 where none does.  The noise reaches g only where
    // 1 - u < exp(-g), so only where (2^32 - h - 0.5) / 2^32 < weight * exp(-guess); the factor covers what float rounds.
    int64_t best_from(const float *weights, float floor, double guess, double *value) const {
        const float reach = (float)std::min((double)LARGEST, 0x1p31 * exp(-guess) * 1.00001);
        int64_t token = -1;
        for (int64_t begin = 0; begin < n; begin += UNIT) {
            const float *w = weights + begin;
            const uint32_t first = (uint32_t)begin;
            int any = 0;
            for (int lane = 0; lane < UNIT; lane++) {
                float rest = (float)(int32_t)(~hash_of(key, first + lane) >> 1);
                any |= rest <= w[lane] * reach - 0.25f;
            }
            if (!any) continue;
            int64_t end = std::min(UNIT, n - begin);
            for (int64_t lane = 0; lane < end; lane++) {
                uint32_t hash = hash_of(key, first + (uint32_t)lane);
                bool is_hit = (float)(int32_t)(~hash >> 1) <= w[lane] * reach - 0.25f;
                if (is_hit && x[begin + lane] >= floor) take(begin + lane, hash, value, &token);
            }
        }
        return token;
    }

    void take(int64_t candidate, uint32_t hash, double *value, int64_t *token) const {
        double sum = noisy(candidate, hash);
        if (sum > *value) *value = sum, *token = candidate;
    }

    int64_t best_of(const int32_t *ids, int64_t count) const {
        double value = -INFINITY;
        int64_t token = -1;
        for (int64_t i = 0; i < count; i++) take(ids[i], hash_of(key, (uint32_t)ids[i]), &value, &token);
        return token;
    }
};
