// LoRA adapters of a step inside its region: per fused layer one product with A and one per target with B, for the rows
// of each adapter alone.
//
// Sums, roundings and additions are those of lora/weights.py over the products of gemm.h, so the bits are the same, and a
// row's result depends on that row and its adapter alone.
#pragma once

#include "gemm.h"

constexpr int64_t SEGMENT_ROWS = 32;  // of one adapter that are computed together, at most

struct AdapterTarget {  // mirrored by native/structures.py
    const Linear *expand;
    int64_t column, rank;  // where its results and its inputs begin
};

struct AdapterPart {  // mirrored by native/structures.py: of one adapter and fused layer
    const Linear *shrink;  // null where it has none
    const void *bias;      // [columns of the layer], or null
    int64_t num_targets;
    AdapterTarget targets[3];
};

struct AdapterRows {  // mirrored by native/structures.py: rows that lie together
    const AdapterPart *parts;  // [layers][4]
    int64_t first, rows;
};

struct StepAdapters {  // mirrored by native/structures.py
    const AdapterRows *segments;
    void *shrunk;  // [tokens][stride]: results of A
    int64_t num_segments, stride, has_bias;
};

// The products of x [rows, k] with the segments' A.  Without a barrier: one has to come before region_expand.
void region_shrink(int dtype, const StepAdapters *a, int64_t place, const void *x);

// Adds their products with B, and biases, into out [rows, columns]; ends with a barrier.
void region_expand(int dtype, const StepAdapters *a, int64_t place, void *out, int64_t columns);
