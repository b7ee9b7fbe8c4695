"""Rows that run nothing: formulas, and a table of tests.

Read in this order: ``memory_budget``, ``failures``, ``contradictions``.
"""
