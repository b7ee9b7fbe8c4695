"""Alerts, each with its runbook.

Read in this order: ``alert`` (the record), ``requests``, ``workers``, ``stores``, ``table`` (all of them).
"""
