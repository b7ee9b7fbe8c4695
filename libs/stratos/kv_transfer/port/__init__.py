"""Payloads beside the pages: the data port of an engine's process, and the ends of transports that speak through it.

Read in this order: ``base`` (the contract), ``local`` (over the pages of this process), ``staged_pair`` and
``receiving`` (credits and frames at the receiver), ``slot_queue``, ``sending``.
"""
