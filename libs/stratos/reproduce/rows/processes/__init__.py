"""Rows of our services as real processes: ``exposed_handoff``, ``placement``."""
