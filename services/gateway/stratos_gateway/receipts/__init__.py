"""Receipts of this gateway's requests: made at their end, written in the background, read by their tenant.

May import: core, store, the records of answers. Must not import: generation, limits; those note their own sections.
"""
