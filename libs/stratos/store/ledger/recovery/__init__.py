"""Proof that the ledger is whole, and its return after Redis was lost.

Read in this order: ``chain_check`` (segments and sums), ``ledger_copy`` (what Redis alone has), ``rebooking`` (what was
sealed after the copy).
"""
