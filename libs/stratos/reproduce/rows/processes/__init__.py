"""Rows of our services as real processes.

Read in this order: ``exposed_handoff``, ``placement``.
"""
