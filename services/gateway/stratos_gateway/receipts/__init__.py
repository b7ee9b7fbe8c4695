"""Receipts of this gateway's requests: made at their end, written in the background, read by their tenant.

Read in this order: ``step`` (around a request), ``sections``, ``desk``. The other sections are noted where their facts
are decided.
"""
