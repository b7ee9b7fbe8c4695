"""Statements, costs and receipts from the ledger, for people and for other programs.

Read in this order: ``statements`` (as text and HTML), ``ledger_files`` (entries as CSV and Parquet),
``receipts`` (what became of one request).
"""
