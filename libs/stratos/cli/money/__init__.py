"""Statements, costs and receipts from the ledger, for people and for other programs.

Read in this order: ``statements`` (as text and HTML), ``tag_costs`` (of models, by cost tags),
``ledger_files`` (entries as CSV and Parquet),
``ledger_traces`` (entries as a trace), ``receipts`` (what became of one request),
``ledger_copies`` (segments verified, copies for the day on which Redis is lost).
"""
