// What the layers of one step share with attention.cpp.
#pragma once

#include <stdint.h>

struct Row {
    int64_t begin, num_tokens, start, table;  // in the flat batch; absolute position; offset into `tables`
};

struct Item {
    int64_t row, kv_head, num_kv_heads, first, last, cost;  // tokens [first, last) of the row
};

struct Step {  // mirrored by native/structures.py
    void *pages;
    const Row *rows;
    const int64_t *tables;
    int64_t *slots;  // page offset of K of head 0 in layer 0, per token
    Item *items;
    const float *cos, *sin;
    char *scratch;
    const float *sinks;     // [layers, num_heads], or null: scores that take their share of the softmax
    const float *placed_cos, *placed_sin;  // [tokens, head_dim]: rotation of queries for first tokens
    void *placed;           // [tokens, num_heads, head_dim]: queries rotated so, or null: no token sees first tokens apart
    int64_t scratch_bytes;  // per thread
    int64_t block_stride, layer_stride, kv_stride, head_stride;  // kv_stride: from K to V; 0: K is V, and qkv has no v
    int64_t num_rows, num_tokens, num_items;
    int64_t num_heads, kv_heads, head_dim, block_size;
    int64_t dtype, threads;
    int64_t is_packed;  // K lies as packed_keys.h says
    int64_t codes;      // pages are bytes, of rows as kv_codes.h says; 0: numbers of `dtype`
    int64_t row;        // elements of the pages, from a token of a head to the next one
    int64_t first_tokens;  // of the sequence, which every token sees beside its window (StreamingLLM's sinks); 0: none
    float scale, cap, norm_eps, norm_offset;  // cap: 0 is none
};

// Fills slots, items and num_items; items has room for num_tokens * kv_heads.  Lowers threads where the work is small.
extern "C" void stratos_plan(Step *s);
