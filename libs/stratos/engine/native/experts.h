// Mixtures of experts of a step inside its region: routing, the products of each expert with the rows that go to it, and
// their weighted sums.
//
// Roundings and the order of sums are those of layers/moe.py over the same kernels, so the bits are the same, and a row's
// result depends on that row alone.
#pragma once

#include "gemm.h"

struct Mlp {  // mirrored by native/structures.py
    Linear gate_up, down;
};

struct Routing {  // mirrored by native/structures.py: how a row's experts are chosen and weighted
    const float *bias;  // [experts], on the scores by which experts are chosen; null is none
    int64_t num_experts, num_chosen, num_groups, num_scoring, num_chosen_groups, is_sigmoid, norms_chosen;
    float scale, unused;
};

struct Experts {  // mirrored by native/structures.py: of one layer
    const Mlp *experts;
    Linear router, shared_gate_up, shared_down, shared_gate;  // without a weight where there is none
    Routing routing;
    int64_t is_router_float;
};

struct ExpertRows {  // mirrored by native/structures.py: buffers of a step; pairs are of a row and an expert
    void *logits, *inputs, *wide, *narrow;  // [rows, experts], [pairs, hidden], [pairs, 2 inner], [pairs, inner]
    void *shared, *gates;                   // [rows, hidden], [rows]
    float *scores, *weights;                // [rows, routing_floats], [rows, chosen]
    int64_t *chosen, *places;               // [rows, chosen]: experts, and the pairs' places in the order of experts
    int64_t *begins, *active;               // [experts + 1]: of an expert's pairs; [experts + 1]: who has some, and how many
};

// Floats that the choice of a row's experts needs.
static inline int64_t routing_floats(const Routing *r) { return 2 * r->num_experts + r->num_groups; }

// Experts of each row and their weights; logits are float, or of the compute type.  Ends with a barrier.
void region_route(int dtype, const Routing *r, const void *logits, bool is_float, float *scores, float *weights,
                  int64_t *chosen, int64_t rows);

// out [rows, hidden] = the experts' weighted results for x.  wide and narrow: for the shared expert.  Ends with a barrier.
void region_experts(int dtype, int activation, float limit, const Experts *e, const ExpertRows *b, const void *x, void *wide,
                    void *narrow, void *out, int64_t rows);
