"""Transports over process groups of torch: two ranks per pair.

Read in this order: ``rendezvous`` (how two processes meet), ``gloo`` (CPU, frames meet by tags), ``ordered`` (frames
meet in the order in which both sides issue them), ``nccl`` (GPUs).
"""
