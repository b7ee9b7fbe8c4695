"""Rows that run nothing: formulas, a table of tests, and figures of committed files.

Read in this order: ``memory_budget``, ``failures``, ``contradictions``, ``further_claims``, ``committed_figures``.
"""
