"""Figures of a run: distributions, goodput, refusals, and whether the client may be believed. Pure.

Read in this order: ``percentiles``, ``slo`` (promised latencies), ``client`` (the client's own figures), ``summary``
(all figures of a run), ``bench_json`` (as ``vllm bench serve`` names them), ``table`` (for a terminal).
"""
