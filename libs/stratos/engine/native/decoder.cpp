// The whole forward pass of a decoder in one call and one parallel region: embedding, layers, logits.
//
// The order of operations and every buffer's type are those of models/decoder.py over the same kernels, so both give the
// same bits.  Nothing returns to Python between two layers: a thread of Python that has given its lock away for one
// operation may wait milliseconds to get it back, and there are some hundred operations in a step.
#include <omp.h>
#include <string.h>

#include "adapters.h"
#include "attention.h"
#include "experts.h"
#include "gemm.h"
#include "region.h"

static constexpr int64_t SERIAL_WORK = 1 << 20;  // products: some microseconds, below a second thread can cost more

struct Layer {  // mirrored by native/structures.py
    const void *before_attention, *after_attention, *before_mlp, *after_mlp;  // norms; null where there is none
    const void *qk_norm, *whole_q_norm, *whole_k_norm;
    Linear qkv, output, gate_up, down;
    const Experts *experts;  // null where gate_up and down are the layer's own
    int64_t window, rope;
    int64_t column, place;  // of the layer's pages: which of the steps, and the layer in them
};

struct Model {  // mirrored by native/structures.py
    const Layer *layers;
    const void *embedding, *final_norm;
    const float *const *cos, *const *sin;  // of every rope: [positions, head_dim]
    Linear head;
    int64_t num_layers, hidden, inner, dtype, num_ropes, activation;
    float eps, norm_offset, embedding_scale, residual_scale, activation_limit, unused;
};

struct Pass {  // mirrored by native/structures.py
    Step *step;  // [num_steps], one for each column of layers; they differ in tables, slots and sinks
    const int64_t *token_ids, *positions, *sampled;  // sampled: places of the tokens whose logits are wanted
    void *residual, *x, *wide, *narrow;              // [tokens, hidden] twice, [tokens, widest linear] twice
    float *cos, *sin;                                // [ropes, tokens, head_dim]
    float *logits;                                   // [num_sampled, columns of the head]
    uint8_t *is_finite;                              // [tokens]
    const StepAdapters *adapters;                    // null where no row has one
    ExpertRows experts;                              // of the widest layer that has some
    int64_t num_sampled, threads, num_steps;
};

static int64_t element_bytes(const Model *m) { return m->dtype ? 2 : 4; }

static void copy_row(void *out, int64_t to, const void *table, int64_t from, int64_t bytes) {
    memcpy((char *)out + to * bytes, (const char *)table + from * bytes, bytes);
}

static void region_inputs(const Model *m, const Pass *p) {
    const int64_t row_bytes = m->hidden * element_bytes(m), rope_bytes = p->step->head_dim * 4;
    const int64_t num_tokens = p->step->num_tokens;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < num_tokens; i++) {
        copy_row(p->residual, i, m->embedding, p->token_ids[i], row_bytes);
        for (int64_t r = 0; r < m->num_ropes; r++) {
            copy_row(p->cos, r * num_tokens + i, m->cos[r], p->positions[i], rope_bytes);
            copy_row(p->sin, r * num_tokens + i, m->sin[r], p->positions[i], rope_bytes);
        }
    }
    if (m->embedding_scale != 1.0f)
        region_scale((int)m->dtype, p->residual, num_tokens, m->hidden, m->embedding_scale);
}

// Ends a half of a layer: norms and scales its result x.
static void region_result(const Model *m, const Pass *p, const void *norm) {
    const int64_t rows = p->step->num_tokens;
    if (norm) region_rms_norm((int)m->dtype, p->x, nullptr, norm, p->x, rows, m->hidden, m->eps, m->norm_offset);
    if (m->residual_scale != 1.0f) region_scale((int)m->dtype, p->x, rows, m->hidden, m->residual_scale);
}

// Begins a half of a layer: adds the result before it into the residual, where there is one, and norms the sum.  Returns
// what the half reads.
static const void *region_input(const Model *m, const Pass *p, const void *norm, bool has_result) {
    const int dtype = (int)m->dtype;
    const int64_t rows = p->step->num_tokens;
    if (!norm) {
        if (has_result) region_add(dtype, p->x, p->residual, rows, m->hidden);
        return p->residual;
    }
    const void *x = has_result ? p->x : p->residual;
    region_rms_norm(dtype, x, has_result ? p->residual : nullptr, norm, p->x, rows, m->hidden, m->eps, m->norm_offset);
    return p->x;
}

// The norms of q and of k over all heads together.
static void region_whole_norms(const Model *m, const Pass *p, const Layer *l) {
    const Step *s = p->step;
    const int64_t q_size = s->num_heads * s->head_dim, kv_size = s->kv_heads * s->head_dim, width = q_size + 2 * kv_size;
    char *keys = (char *)p->wide + q_size * element_bytes(m);
    region_norm_part((int)m->dtype, p->wide, l->whole_q_norm, s->num_tokens, width, q_size, m->eps, m->norm_offset);
    region_norm_part((int)m->dtype, keys, l->whole_k_norm, s->num_tokens, width, kv_size, m->eps, m->norm_offset);
}

enum Fused { QKV, OUTPUT, GATE_UP, DOWN, NUM_FUSED };

// A fused layer with the adapters of its rows.
static void region_fused(const Model *m, const Pass *p, int64_t index, Fused fused, const Linear *l, const void *x, void *out) {
    const int64_t place = index * NUM_FUSED + fused;
    if (p->adapters) region_shrink((int)m->dtype, p->adapters, place, x);
    region_linear((int)m->dtype, l, x, out, p->step->num_tokens, false);
    if (p->adapters) region_expand((int)m->dtype, p->adapters, place, out, l->stride);
}

// The second half of a layer; adapters lie on a dense one alone.
static void region_mlp(const Model *m, const Pass *p, int64_t index, const void *x) {
    const Layer *l = m->layers + index;
    const int64_t rows = p->step->num_tokens;
    const int dtype = (int)m->dtype, activation = (int)m->activation;
    if (l->experts)
        return region_experts(dtype, activation, m->activation_limit, l->experts, &p->experts, x, p->wide, p->narrow, p->x, rows);
    region_fused(m, p, index, GATE_UP, &l->gate_up, x, p->wide);
    region_gated(dtype, activation, m->activation_limit, p->wide, p->narrow, rows, m->inner);
    region_fused(m, p, index, DOWN, &l->down, p->narrow, p->x);
}

static void region_layer(const Model *m, const Pass *p, int64_t index) {
    const Layer *l = m->layers + index;
    const int64_t rows = p->step->num_tokens;
    Step step = p->step[l->column];  // each thread's own: layers differ in their rotation
    step.cos += l->rope * rows * step.head_dim;
    step.sin += l->rope * rows * step.head_dim;
    region_fused(m, p, index, QKV, &l->qkv, region_input(m, p, l->before_attention, index > 0), p->wide);
    if (l->whole_q_norm) region_whole_norms(m, p, l);
    region_attention(&step, l->place, l->window, p->wide, p->narrow, l->qk_norm);
    region_fused(m, p, index, OUTPUT, &l->output, p->narrow, p->x);
    region_result(m, p, l->after_attention);
    region_mlp(m, p, index, region_input(m, p, l->before_mlp, true));
    region_result(m, p, l->after_mlp);
}

static void region_logits(const Model *m, const Pass *p) {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < p->num_sampled; i++)
        copy_row(p->x, i, p->residual, p->sampled[i], m->hidden * element_bytes(m));
    region_rms_norm((int)m->dtype, p->x, nullptr, m->final_norm, p->x, p->num_sampled, m->hidden, m->eps,
                    m->norm_offset);
    region_linear((int)m->dtype, &m->head, p->x, p->logits, p->num_sampled, true);
}

static int64_t weights_of(const Linear *l) { return l->stride * l->k; }

static int64_t expert_weights(const Experts *e) {  // that a row is multiplied with
    return weights_of(&e->router) + weights_of(&e->shared_gate_up) + weights_of(&e->shared_down) +
           e->routing.num_chosen * (weights_of(&e->experts->gate_up) + weights_of(&e->experts->down));
}

static int64_t products(const Model *m, const Pass *p) {
    int64_t weights = 0;
    for (const Layer *l = m->layers; l < m->layers + m->num_layers; l++)
        weights += weights_of(&l->qkv) + weights_of(&l->output) +
                   (l->experts ? expert_weights(l->experts) : weights_of(&l->gate_up) + weights_of(&l->down));
    return weights * p->step->num_tokens + weights_of(&m->head) * p->num_sampled;
}

extern "C" {

int64_t stratos_pass_bytes(void) {
    return sizeof(Layer) + sizeof(Model) + sizeof(Pass) + sizeof(AdapterPart) + sizeof(StepAdapters) + sizeof(Mlp) + sizeof(Experts);
}

// Plans the step, runs all layers and writes KV.  residual gets the hidden states before the last norm.
void stratos_forward(const Model *m, Pass *p) {
    int threads = products(m, p) < SERIAL_WORK ? 1 : (int)p->threads;
    for (int64_t i = 0; i < p->num_steps; i++) {
        p->step[i].cos = p->cos;
        p->step[i].sin = p->sin;
        stratos_plan(p->step + i);
    }
#pragma omp parallel num_threads(threads)
    {
        region_inputs(m, p);
        for (int64_t index = 0; index < m->num_layers; index++) region_layer(m, p, index);
        region_add_finite((int)m->dtype, p->x, p->residual, p->is_finite, p->step->num_tokens, m->hidden);
        if (p->num_sampled) region_logits(m, p);
    }
}

}  // extern "C"
