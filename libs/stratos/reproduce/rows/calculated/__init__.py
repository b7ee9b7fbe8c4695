"""Rows that run nothing: formulas, a table of tests, and figures of committed files.

Read in this order: ``memory_budget``, ``failures``, ``contradictions``, ``further_claims`` (from ``quoted_memory``,
``quoted_speed`` and ``quoted_money``), ``committed_figures``.
"""
