"""Measurements of ``gpu_check.py``, one module per section; each runs in a process of its own."""
