"""Costs of requests, from their end to the ledger; only the check of a budget is in a request's path.

Read in this order: ``settings``, ``step`` (around a request), ``meter`` (puts drafts together with what workers
counted), ``entries``, ``writer`` (into Redis, or the spool), ``claims`` (counts of gateways that died),
``older_ledgers`` (that went by names), ``budgets``,
``periods`` and ``readings`` (of questions), ``billing`` (all of it).
"""
