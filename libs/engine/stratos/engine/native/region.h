// Operations on the rows of a step, called by every thread of one parallel region; each ends with a barrier.
//
// dtype: 0 float, 1 bf16.  Outside of a region the calling thread does all the work.
#pragma once

#include <stdint.h>

struct Linear;
struct Step;

// out [rows, n] = x [rows, k] weight^T + bias; out is float where is_float.
void region_linear(int dtype, const Linear *l, const void *x, void *out, int64_t rows, bool is_float);
