// Counter noise and weights of tokens: what the sampler computes for every token of a row.
//
// Everything here is elementwise and written without a choice for the compiler (no contraction, fused products by name),
// so every instruction set gives the same bits, and the loops that call it are vectorised.  The definition of the noise
// is stratos/core/rng.py.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "simd.h"

static inline uint32_t mixed(uint32_t h) {  // MurmurHash3's finaliser
    h ^= h >> 16;
    h *= 0x85EBCA6Bu;
    h ^= h >> 13;
    h *= 0xC2B2AE35u;
    return h ^ (h >> 16);
}

struct Key {
    uint32_t low, high;
};

static inline uint32_t hash_of(Key key, uint32_t token) { return mixed(mixed((token * 0x9E3779B1u) ^ key.low) + key.high); }

static inline double gumbel(uint32_t hash) { return -log(-log(((double)hash + 0.5) * 0x1p-32)); }

// value where x >= floor, else 0
static inline vec where_from(vec x, vec floor, vec value) {
#if defined(__AVX512F__)
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, floor, _CMP_GE_OQ), value);
#else
    return _mm256_and_ps(_mm256_cmp_ps(x, floor, _CMP_GE_OQ), value);
#endif
}

// exp(x) of x <= 0 to some 2e-7 of its value; exp(0) is 1, and what is below 2^-126 is 0.
static inline vec weight_of(vec x) {
    vec log2e = vset(1.44269504f), z = vmax(vmul(x, log2e), vset(-200.0f));
    vec rest = vfma(vmax(x, vset(-138.0f)), log2e, vsub(vset(0), z));  // what z lost when it was rounded
    vec power = vexp2(z);
    return vfma(power, vmul(rest, vset(0.693147181f)), power);
}

// Sum of floats in 16 lanes of float64, added up in an order that no instruction set changes.
struct Sum {
#if defined(__AVX512F__)
    __m512d parts[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    void add(const float *x) {
        for (int i = 0; i < 2; i++) parts[i] = _mm512_add_pd(parts[i], _mm512_cvtps_pd(_mm256_loadu_ps(x + 8 * i)));
    }
#else
    __m256d parts[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
    void add(const float *x) {
        for (int i = 0; i < 4; i++) parts[i] = _mm256_add_pd(parts[i], _mm256_cvtps_pd(_mm_loadu_ps(x + 4 * i)));
    }
#endif
    double total() const {
        double lanes[16], sum = 0;
        memcpy(lanes, parts, sizeof(lanes));
        for (int lane = 0; lane < 16; lane++) sum += lanes[lane];
        return sum;
    }
};

constexpr int64_t UNIT = 64;  // tokens, of which the last ones of a row are padding
static inline int64_t padded(int64_t n) { return (n + UNIT - 1) / UNIT * UNIT; }

// LANES elements of a row of n from i on, `fill` beyond its end.
static inline vec load_row(const float *x, int64_t i, int64_t n, float fill) {
    if (i + LANES <= n) return vload(x + i);
    int m = i < n ? (int)(n - i) : 0;
    return vkeep(vload(x + i, m), 0, m, vset(fill));
}

// Integers in the order of the floats, and back.
static inline int64_t ordered(float x) {
    int32_t bits;
    memcpy(&bits, &x, 4);
    return bits ^ (bits >> 31 & 0x7fffffff);
}

static inline float from_ordered(int32_t key) {
    int32_t bits = key < 0 ? key ^ 0x7fffffff : key;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
