// One row of a batch as Python describes it, and the changes to its logits before temperature, in place.
//
// The order is that of sampling/logits_processors.py: bias, penalties, bans, allowed tokens; then the watermark.
#pragma once

#include "noise.h"

struct SampleRow {         // mirrored by native/structures.py
    const float *logits;   // [vocab], not changed
    const int64_t *bias_ids;
    const float *biases;
    const int64_t *seen_ids;  // tokens of prompt and output, each once
    const float *counts;      // how often each is in the output
    const int64_t *banned;
    const uint32_t *allowed;  // bit t % 32 of word t / 32; null allows all
    float *top_logprobs;      // [num_top]
    int64_t *top_ids;
    int64_t num_biases, num_seen, num_banned;
    int64_t num_top;  // -1: no log probabilities
    int64_t top_k;    // 0: off
    double top_p;
    float temperature;  // 0: takes the best
    float least;        // logarithm of min-p: what lies below after temperature is cut off; -inf: off
    float repetition, frequency, presence;
    float mark_delta;  // 0: no watermark
    Key key, mark_key;
    uint32_t mark_threshold;
    int32_t status;  // from here on results; 0: fine, 1: logits that are not finite, 2: every token is banned, 3: an id is none
    int64_t token, rank;
    float logprob;
    int32_t unused;
};

constexpr int32_t NON_FINITE = 1, ALL_BANNED = 2, NO_TOKEN = 3;

static inline bool is_edited(const SampleRow *r) {
    return r->num_biases || r->num_seen || r->num_banned || r->allowed || r->mark_delta != 0;
}

static inline float penalised(const SampleRow *r, float x, float count) {
    if (r->repetition != 1.0f) x = x > 0 ? x / r->repetition : x * r->repetition;
    if (count > 0 && (r->frequency != 0 || r->presence != 0)) {
        float frequent = count * r->frequency;
        x -= frequent + r->presence;
    }
    return x;
}

static inline void allow_only(float *x, const uint32_t *allowed, int64_t n) {
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        uint32_t word = allowed[i / 32];
        if (word == 0xFFFFFFFFu) continue;
        for (int bit = 0; bit < 32; bit++) x[i + bit] = (word >> bit) & 1 ? x[i + bit] : -INFINITY;
    }
    for (; i < n; i++)
        if (!((allowed[i / 32] >> (i % 32)) & 1)) x[i] = -INFINITY;
}

static inline bool are_tokens(const int64_t *ids, int64_t count, int64_t n) {
    bool are = true;
    for (int64_t i = 0; i < count; i++) are &= (uint64_t)ids[i] < (uint64_t)n;
    return are;
}

// False where an id lies outside of the vocabulary; then nothing is changed.
static inline bool edit(const SampleRow *r, float *x, int64_t n) {
    bool are = are_tokens(r->bias_ids, r->num_biases, n) & are_tokens(r->seen_ids, r->num_seen, n);
    if (!(are & are_tokens(r->banned, r->num_banned, n))) return false;
    for (int64_t i = 0; i < r->num_biases; i++) x[r->bias_ids[i]] += r->biases[i];
    for (int64_t i = 0; i < r->num_seen; i++) x[r->seen_ids[i]] = penalised(r, x[r->seen_ids[i]], r->counts[i]);
    for (int64_t i = 0; i < r->num_banned; i++) x[r->banned[i]] = -INFINITY;
    if (r->allowed) allow_only(x, r->allowed, n);
    return true;
}

static inline void mark(const SampleRow *r, float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] += hash_of(r->mark_key, (uint32_t)i) < r->mark_threshold ? r->mark_delta : 0.0f;
}
