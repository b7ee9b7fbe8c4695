#include "experts.h"

#include "region.h"

static constexpr float LOG2_E = 1.44269504f;
static constexpr int64_t SERIAL_ROUTES = 16384;  // scores: below this a second thread saves less than it can cost
static constexpr int64_t FEW_ROWS = 16;          // of an expert: its panels are shared out together with the others'

static inline float infinity() { return __builtin_inff(); }
static inline vec sigmoid(vec x) { return vdiv(vset(1.0f), vadd(vset(1.0f), vexp2_bounded(vmul(x, vset(-LOG2_E))))); }

// -- routing ---------------------------------------------------------------------------------------------------------------

template <class T> static float highest(const T *x, int64_t n) {
    vec most = vset(-infinity());
    for (int64_t i = 0; i < n; i += LANES) most = vmax(most, vkeep(vload(x + i, (int)(n - i)), 0, (int)(n - i), vset(-infinity())));
    return vmaximum(most);
}

template <class T> static void softmax(const T *x, float *out, int64_t n) {
    const vec most = vset(highest(x, n));
    vec sums = vset(0);
    for (int64_t i = 0; i < n; i += LANES) {
        const int m = (int)(n - i);
        const vec power = vexp2(vmul(vsub(vload(x + i, m), most), vset(LOG2_E)));
        sums = vadd(sums, vkeep(power, 0, m, vset(0)));
        vstore(out + i, power, m);
    }
    const vec total = vset(vsum(sums));
    for (int64_t i = 0; i < n; i += LANES) vstore(out + i, vdiv(vload(out + i, (int)(n - i)), total), (int)(n - i));
}

template <class T> static void sigmoids(const T *x, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) vstore(out + i, sigmoid(vload(x + i, (int)(n - i))), (int)(n - i));
}

// Takes the highest key away and returns its place, the lowest among equals; 0 where none is a number.
static int64_t take_best(float *keys, int64_t n) {
    const float most = highest(keys, n);
    int64_t place = 0;
    while (place < n && !(keys[place] == most)) place++;
    if (place == n) place = 0;
    keys[place] = -infinity();
    return place;
}

// A group's own score: that of its best expert, or of its best two.
static float group_score(const float *keys, int64_t n, int64_t num_scoring) {
    float first = -infinity(), second = -infinity();
    for (int64_t i = 0; i < n; i++) {
        if (keys[i] > first)
            second = first, first = keys[i];
        else if (keys[i] > second)
            second = keys[i];
    }
    return num_scoring == 1 ? first : first + second;
}

// Takes the keys of all groups but the best ones away.
static void keep_best_groups(const Routing *r, float *keys, float *groups) {
    const int64_t size = r->num_experts / r->num_groups;
    for (int64_t g = 0; g < r->num_groups; g++) groups[g] = group_score(keys + g * size, size, r->num_scoring);
    for (int64_t i = 0; i < r->num_chosen_groups; i++) take_best(groups, r->num_groups);
    for (int64_t e = 0; e < r->num_experts; e++)
        if (groups[e / size] != -infinity()) keys[e] = -infinity();
}

template <class T> static void route_row(const Routing *r, const T *logits, float *scores, float *weights, int64_t *chosen) {
    const int64_t n = r->num_experts;
    float *keys = scores + n, total = 0;
    if (r->is_sigmoid)
        sigmoids(logits, scores, n);
    else
        softmax(logits, scores, n);
    for (int64_t e = 0; e < n; e++) keys[e] = r->bias ? scores[e] + r->bias[e] : scores[e];
    if (r->num_groups > 1) keep_best_groups(r, keys, keys + n);
    for (int64_t i = 0; i < r->num_chosen; i++) {
        chosen[i] = take_best(keys, n);
        weights[i] = scores[chosen[i]];
        total += weights[i];
    }
    for (int64_t i = 0; i < r->num_chosen; i++) {
        if (r->norms_chosen) weights[i] /= total;
        weights[i] *= r->scale;
    }
}

template <class T>
static void route(const Routing *r, const T *logits, float *scores, float *weights, int64_t *chosen, int64_t rows) {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows; i++)
        route_row(r, logits + i * r->num_experts, scores + i * routing_floats(r), weights + i * r->num_chosen,
                  chosen + i * r->num_chosen);
}

void region_route(int dtype, const Routing *r, const void *logits, bool is_float, float *scores, float *weights,
                  int64_t *chosen, int64_t rows) {
    DISPATCH(is_float ? 0 : dtype, route(r, (const T *)logits, scores, weights, chosen, rows));
}

// -- the experts' products -------------------------------------------------------------------------------------------------

// Sorts the pairs by expert, those of one in the order of rows.
static void sort_pairs(const Routing *r, const ExpertRows *b, int64_t rows) {
    const int64_t n = r->num_experts, pairs = rows * r->num_chosen;
    memset(b->begins, 0, (size_t)(n + 1) * sizeof(int64_t));
    for (int64_t i = 0; i < pairs; i++) b->begins[b->chosen[i] + 1]++;
    for (int64_t e = 0; e < n; e++) b->begins[e + 1] += b->begins[e], b->active[e] = b->begins[e];
    for (int64_t i = 0; i < pairs; i++) b->places[i] = b->active[b->chosen[i]]++;
    int64_t num_active = 0;
    for (int64_t e = 0; e < n; e++)
        if (b->begins[e] < b->begins[e + 1]) b->active[num_active++] = e;
    b->active[n] = num_active;
}

static int64_t element_bytes(int dtype) { return dtype ? 2 : 4; }

static void gather(const Routing *r, const ExpertRows *b, const void *x, int64_t rows, int64_t row_bytes) {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows * r->num_chosen; i++)
        memcpy((char *)b->inputs + b->places[i] * row_bytes, (const char *)x + i / r->num_chosen * row_bytes, (size_t)row_bytes);
}

// One product of each expert with its pairs, whose rows lie in the order of experts.
struct ExpertProducts {
    int dtype;
    const Experts *e;
    const ExpertRows *b;
    Linear Mlp::*part;
    const char *x;
    char *out;

    const Linear *linear(int64_t expert) const { return &(e->experts[expert].*part); }
    int64_t rows(int64_t expert) const { return b->begins[expert + 1] - b->begins[expert]; }
    const char *x_of(int64_t expert) const { return x + b->begins[expert] * linear(expert)->k * element_bytes(dtype); }
    char *out_of(int64_t expert) const { return out + b->begins[expert] * linear(expert)->stride * element_bytes(dtype); }
    bool is_few(int64_t expert) const { return rows(expert) <= FEW_ROWS && takes_few_rows(dtype, linear(expert)); }
};

static void region_pairs(const ExpertProducts &p) {
    const int64_t *active = p.b->active, num_active = active[p.e->routing.num_experts];
    for (int64_t i = 0; i < num_active; i++)
        if (!p.is_few(active[i]))
            region_linear(p.dtype, p.linear(active[i]), p.x_of(active[i]), p.out_of(active[i]), p.rows(active[i]), false);
    // Experts with few rows share a loop: a barrier after each would cost more than its product.
    const int64_t panels = panels_of(p.linear(0)->n);
    share_panels(p.linear(0));
#pragma omp for schedule(runtime)
    for (int64_t item = 0; item < num_active * panels; item++) {
        const int64_t expert = active[item / panels];
        if (p.is_few(expert))
            few_rows_product(p.dtype, p.linear(expert), item % panels, p.x_of(expert), p.out_of(expert), p.rows(expert));
    }
}

// -- their sums ------------------------------------------------------------------------------------------------------------

template <class T> static void add_results(const Experts *e, const ExpertRows *b, T *out, int64_t rows, int64_t hidden) {
    const int64_t num_chosen = e->routing.num_chosen;
    const T *results = (const T *)b->inputs, *shared = e->shared_down.weight ? (const T *)b->shared : nullptr;
    const T *gates = e->shared_gate.weight ? (const T *)b->gates : nullptr;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const int64_t *places = b->places + r * num_chosen;
        const float *weights = b->weights + r * num_chosen;
        const vec gate = gates ? sigmoid(vset(to_float(gates[r]))) : vset(1.0f);
        for (int64_t i = 0; i < hidden; i += LANES) {
            const int m = (int)(hidden - i);
            vec total = vmul(vload(results + places[0] * hidden + i, m), vset(weights[0]));
            for (int64_t c = 1; c < num_chosen; c++)
                total = vadd(total, vmul(vload(results + places[c] * hidden + i, m), vset(weights[c])));
            if (shared) total = vadd(total, vmul(vload(shared + r * hidden + i, m), gate));
            store_sum(out + r * hidden + i, total, m);
        }
    }
}

void region_experts(int dtype, int activation, float limit, const Experts *e, const ExpertRows *b, const void *x, void *wide,
                    void *narrow, void *out, int64_t rows) {
    const Linear &gate_up = e->experts->gate_up, &down = e->experts->down;
    const int64_t hidden = gate_up.k, pairs = rows * e->routing.num_chosen;
    region_linear(dtype, &e->router, x, b->logits, rows, e->is_router_float);
    region_route(dtype, &e->routing, b->logits, e->is_router_float, b->scores, b->weights, b->chosen, rows);
#pragma omp single
    sort_pairs(&e->routing, b, rows);
    gather(&e->routing, b, x, rows, hidden * element_bytes(dtype));
    region_pairs(ExpertProducts{dtype, e, b, &Mlp::gate_up, (const char *)b->inputs, (char *)b->wide});
    region_gated(dtype, activation, limit, b->wide, b->narrow, pairs, down.k);
    region_pairs(ExpertProducts{dtype, e, b, &Mlp::down, (const char *)b->narrow, (char *)b->inputs});
    if (e->shared_down.weight) {
        region_linear(dtype, &e->shared_gate_up, x, wide, rows, false);
        region_gated(dtype, activation, limit, wide, narrow, rows, e->shared_down.k);
        region_linear(dtype, &e->shared_down, narrow, b->shared, rows, false);
        if (e->shared_gate.weight) region_linear(dtype, &e->shared_gate, x, b->gates, rows, false);
    }
    DISPATCH(dtype, add_results(e, b, (T *)out, rows, hidden));
}

extern "C" {

int64_t stratos_routing_floats(const Routing *r) { return routing_floats(r); }

// logits and scores [rows, experts] are float.
void stratos_route(const Routing *r, const float *logits, float *scores, float *weights, int64_t *chosen, int64_t rows,
                   int threads) {
    if (rows * r->num_experts < SERIAL_ROUTES) threads = 1;
#pragma omp parallel num_threads(threads)
    region_route(0, r, logits, true, scores, weights, chosen, rows);
}

void stratos_sigmoid(const float *x, float *out, int64_t n) { sigmoids(x, out, n); }

}  // extern "C"
