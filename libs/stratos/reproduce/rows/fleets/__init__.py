"""Rows of simulated fleets: our router over engines without a model, under a virtual clock.

Read in this order: ``replicas``, ``policies``, ``prefill_decode``.
"""
