"""Rows that a GPU alone can answer: ``read(check) -> RowResult`` makes them from a report of ``scripts/gpu_check.py``.

Read in this order: ``sampling``, ``utilisation``.
"""
