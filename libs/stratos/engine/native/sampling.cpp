// The sampler: from the logits of each row of a batch to its token, in one call; a row is computed from that row alone.
//
// Top-p does not look for its threshold.  The best token of the whole row is the row's token where the filter keeps it,
// which the sum of the weights above it tells; where not, only the tokens above it are left, and the same is asked again.
// Top-k collects its tokens by the largest of each block of the vocabulary, and where k is larger than there are blocks,
// by counts of the logits' leading bits.
#include <omp.h>

#include "draw.h"
#include "row_edits.h"
#include "top_values.h"

static constexpr int64_t FEW = 256;                           // tokens that are added up without being tried first
static constexpr int64_t SERIAL_LOGITS = 1 << 16;             // below this a second thread saves less than it can cost

struct Scratch {
    float *edited, *weights;  // [vocab] each
    Tops tops;
};

static Scratch scratch_of(char *memory, int64_t vocab) {
    float *floats = (float *)memory;
    int64_t n = padded(vocab);
    return {floats, floats + n, {floats + 2 * n, floats + 3 * n, (int32_t *)(floats + 4 * n)}};
}

// Top-p among tokens that top-k has kept, `values` in falling order: the lowest logit that stays.
static float nucleus(const Draw &draw, const float *values, int64_t count, double top_p) {
    double total = 0, sum = 0;
    for (int64_t i = 0; i < count; i++) total += exp((double)draw.scaled(values[i]));
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        double mass = exp((double)draw.scaled(values[i]));
        sum += mass;
        kept += sum - mass < top_p * total;
    }
    return draw.floor_of(draw.scaled(values[kept ? kept - 1 : 0]), false);
}

// Of the tokens from the logit `floor` on, which top-k or min-p left.
static int64_t draw_of_top(const SampleRow *r, const Draw &draw, float floor, Scratch s) {
    int64_t count = r->top_p < 1 || r->top_k <= FEW ? collect(draw.x, draw.n, floor, s.tops) : r->top_k;
    if (r->top_p < 1) {
        std::sort(s.tops.values, s.tops.values + count, [](float a, float b) { return a > b; });
        floor = nucleus(draw, s.tops.values, count, r->top_p);
        count = collect(draw.x, draw.n, floor, s.tops);
    }
    if (count <= FEW) return draw.best_of(s.tops.ids, count);
    draw.weigh(s.weights);
    return draw.best(s.weights, floor, draw.weight_from(s.weights, floor));
}

static int64_t draw_of_all(const SampleRow *r, const Draw &draw, double total, Scratch s) {
    const double bound = r->top_p * total;
    float floor = -LARGEST;
    for (double mass = total;;) {
        int64_t token = draw.best(s.weights, floor, mass);
        float scaled = draw.scaled(draw.x[token]);
        if (r->top_p >= 1 || scaled == 0) return token;
        floor = draw.floor_of(scaled, true);
        mass = draw.weight_from(s.weights, floor);
        if (mass < bound) return token;
    }
}

// Tells the sum of all weights, where they were added up.
static int64_t draw_row(const SampleRow *r, const Draw &draw, double *total, Scratch s) {
    if (r->temperature == 0) return first_of(draw.x, draw.n, draw.most, s.tops);
    float floor = r->least == -INFINITY ? -INFINITY : draw.floor_of(r->least, false);
    if (r->top_k) {
        float bound = draw.scaled(value_at(draw.x, draw.n, r->top_k, s.tops));
        floor = std::max(floor, draw.floor_of(bound, false));
        return draw_of_top(r, draw, std::max(floor, -LARGEST), s);  // fewer than k tokens may be allowed
    }
    if (floor > -INFINITY && are_few(draw.n, floor, FEW, s.tops)) return draw_of_top(r, draw, floor, s);
    *total = draw.weigh(s.weights);
    return draw_of_all(r, draw, *total, s);
}

static int64_t rank_of(const float *x, int64_t n, float value) {
    int64_t rank = 1;
    for (int64_t begin = 0; begin < n; begin += UNIT) {
        int higher = 0;
        for (int64_t i = begin, end = std::min(begin + UNIT, n); i < end; i++) higher += x[i] > value;
        rank += higher;
    }
    return rank;
}

// Log probabilities of the row's token and of its most likely ones, under its logits as they came, whose weights sum up
// to `total`.
static void report(SampleRow *r, const Draw &raw, double total, Scratch s) {
    const float *x = raw.x, norm = (float)((double)raw.most + log(total));
    r->logprob = x[r->token] - norm;
    r->rank = x[r->token] == raw.most ? 1 : rank_of(x, raw.n, x[r->token]);
    if (!r->num_top) return;
    int64_t count = collect(x, raw.n, value_at(x, raw.n, r->num_top, s.tops), s.tops);
    auto falls = [x](int32_t a, int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); };
    std::partial_sort(s.tops.ids, s.tops.ids + r->num_top, s.tops.ids + count, falls);
    for (int64_t place = 0; place < r->num_top; place++) {
        r->top_ids[place] = s.tops.ids[place];
        r->top_logprobs[place] = x[s.tops.ids[place]] - norm;
    }
}

// Finds the largest logits as `find_blocks` does, where those of the blocks without an edit are known.
static void find_edited(const SampleRow *r, const float *x, int64_t n, Tops tops, float *most) {
    for (int64_t i = 0; i < r->num_biases; i++) tops.blocks[r->bias_ids[i] / UNIT] = NAN;
    for (int64_t i = 0; i < r->num_seen; i++) tops.blocks[r->seen_ids[i] / UNIT] = NAN;
    for (int64_t i = 0; i < r->num_banned; i++) tops.blocks[r->banned[i] / UNIT] = NAN;
    *most = -INFINITY;
    for (int64_t begin = 0; begin < n; begin += UNIT) {
        float *block = tops.blocks + begin / UNIT, own;
        if (isnan(*block)) find_blocks(x + begin, std::min(UNIT, n - begin), {block}, &own);
        *most = std::max(*most, *block);
    }
}

// Edits a copy of the row, for the draw; returns the status.
static int32_t edit_copy(const SampleRow *r, Draw *draw, Scratch s) {
    memcpy(s.edited, r->logits, draw->n * sizeof(float));
    if (!edit(r, s.edited, draw->n)) return NO_TOKEN;
    draw->x = s.edited;
    if (r->allowed)
        find_blocks(s.edited, draw->n, s.tops, &draw->most);
    else
        find_edited(r, s.edited, draw->n, s.tops, &draw->most);
    if (draw->most == -INFINITY) return ALL_BANNED;
    if (r->mark_delta != 0) {
        mark(r, s.edited, draw->n);
        find_blocks(s.edited, draw->n, s.tops, &draw->most);
    }
    return 0;
}

static void sample_row(SampleRow *r, int64_t n, Scratch s) {
    float most;
    r->token = 0;
    r->status = find_blocks(r->logits, n, s.tops, &most) ? 0 : NON_FINITE;
    if (r->status) return;
    const Draw raw = {r->logits, n, most, 1.0f, -INFINITY, r->key};
    Draw draw = {r->logits, n, most, r->temperature, r->least, r->key};
    if (is_edited(r)) r->status = edit_copy(r, &draw, s);
    if (r->status) return;
    double total = 0;
    r->token = draw_row(r, draw, &total, s);
    if (r->num_top < 0) return;
    if (r->num_top > 0 && draw.x != raw.x) find_blocks(raw.x, n, s.tops, &most);
    const bool is_raw = draw.x == raw.x && r->temperature == 1.0f && r->least == -INFINITY;
    report(r, raw, is_raw && total > 0 ? total : raw.weigh(s.weights), s);
}

extern "C" {

int64_t stratos_row_bytes(void) { return sizeof(SampleRow); }

// Scratch of one thread.
int64_t stratos_sample_bytes(int64_t vocab) { return 5 * padded(vocab) * (int64_t)sizeof(float); }

void stratos_sample(SampleRow *rows, int64_t num_rows, int64_t vocab, void *scratch, int threads) {
    const int64_t bytes = stratos_sample_bytes(vocab);
    const int team = num_rows * vocab < SERIAL_LOGITS ? 1 : (int)std::min((int64_t)threads, num_rows);
#pragma omp parallel for schedule(dynamic) num_threads(team)
    for (int64_t i = 0; i < num_rows; i++)
        sample_row(rows + i, vocab, scratch_of((char *)scratch + omp_get_thread_num() * bytes, vocab));
}

}  // extern "C"
