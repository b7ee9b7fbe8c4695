"""Checks that a platform runs on itself: tenants apart from one another, and what this machine has.

Read in this order: ``findings`` (records and reports), ``isolation`` (``stratos admin check-isolation``), ``machine``
(``stratos doctor``, sizes of workers).
"""
