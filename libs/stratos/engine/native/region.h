// Operations on the rows of a step, called by every thread of one parallel region; each ends with a barrier.
//
// dtype: 0 float, 1 bf16, 2 f16.  Outside of a region the calling thread does all the work.
#pragma once

#include <stdint.h>

#include "simd.h"

// Calls `call` with T for the type of the code.
#define DISPATCH(dtype, call)       \
    do {                            \
        if ((dtype) == 2) {         \
            typedef f16_t T;        \
            call;                   \
        } else if ((dtype) == 1) {  \
            typedef bf16_t T;       \
            call;                   \
        } else {                    \
            typedef float T;        \
            call;                   \
        }                           \
    } while (0)

struct Linear;
struct Step;

// out [rows, n] = norm of x [rows, n]; where residual is not null x is added into it first, and the sum is normed.
// out may be x.  offset is added to the weights.
void region_rms_norm(int dtype, const void *x, void *residual, const void *weight, void *out, int64_t rows, int64_t n,
                     float eps, float offset);

// The first n elements of each row are normed in place.
void region_norm_part(int dtype, void *x, const void *weight, int64_t rows, int64_t stride, int64_t n, float eps,
                      float offset);

// x [rows, n] *= factor.
void region_scale(int dtype, void *x, int64_t rows, int64_t n, float factor);

// residual [rows, n] += x.
void region_add(int dtype, const void *x, void *residual, int64_t rows, int64_t n);

// out [rows, n] = act(gate) * up of gate_up [rows, 2 n]; activation: as native/structures.py says.
void region_gated(int dtype, int activation, float limit, const void *gate_up, void *out, int64_t rows, int64_t n);

// residual += x; is_finite [rows] says whether every element of the sum is.
void region_add_finite(int dtype, const void *x, void *residual, uint8_t *is_finite, int64_t rows, int64_t n);

// out [rows, n] = x [rows, k] weight^T + bias; out is float where is_float.
void region_linear(int dtype, const Linear *l, const void *x, void *out, int64_t rows, bool is_float);

// Whether few_rows_product knows such a weight.
bool takes_few_rows(int dtype, const Linear *l);

// One panel of region_linear for at most 16 rows, by the calling thread alone.
void few_rows_product(int dtype, const Linear *l, int64_t panel, const void *x, void *out, int64_t rows);

// Norm, rotation and write of K and V, then attention, of one layer; rotates q in place.  window: 0 is none.
void region_attention(const Step *s, int64_t layer, int64_t window, void *qkv, void *out, const void *norm);
