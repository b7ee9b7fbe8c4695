"""Bottlenecks of a serving engine, the switch of ours against each, and where its gain is measured.

A switch is a setting of a decode worker; a row is one of ``stratos reproduce``; an ablation is one of
``scripts.bench.ablation``, empty where the row alone compares both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamedBottleneck:
    """A limit, and what stands against it."""

    limit: str
    switch: str
    row: str
    ablation: str = ""


BOTTLENECKS = (
    NamedBottleneck("KV memory: a slot of the whole context for each request", "SCHEDULER__BASELINE__KV_ALLOCATION",
                    "kv-concurrency", "paged KV"),
    NamedBottleneck("rows that stay empty until the longest answer ends", "SCHEDULER__BASELINE__BATCHING",
                    "continuous-batching", "continuous batching"),
    NamedBottleneck("streams that wait for a long prompt", "SCHEDULER__SWITCHES__CHUNKED_PREFILL", "chunked-prefill",
                    "chunked prefill"),
    NamedBottleneck("prompts whose beginning was computed before", "SCHEDULER__SWITCHES__PREFIX_CACHE",
                    "prefix-sharing", "prefix cache"),
    NamedBottleneck("computing the whole sequence for each token", "SCHEDULER__BASELINE__KV_CACHE", "kv-cache",
                    "KV cache"),
    NamedBottleneck("attention and layers as single operations", "RUNNER__KERNELS__NATIVE_KERNELS", "attention",
                    "native kernels"),
    NamedBottleneck("the host between two steps", "SCHEDULER__SWITCHES__OVERLAP", "batch-sweep", "one step ahead"),
    NamedBottleneck("sampling", "RUNNER__KERNELS__NATIVE_SAMPLER", "sampling", "native sampler"),
    NamedBottleneck("bytes of weights that each step reads", "RUNNER__QUANTIZATION", "committed-figures"),
    NamedBottleneck("one token for each read of the weights", "SCHEDULER__SPECULATION__METHOD", "committed-figures",
                    "speculation"),
)  # fmt: skip
