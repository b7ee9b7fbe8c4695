"""Quantised weights and KV: fp8, int8 and int4 linear layers will live here, chosen by layers.linear."""
