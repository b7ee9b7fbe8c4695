"""Answers of one message that an idempotency key gives again.

Read in this order: ``once`` (one answer a key), ``step`` (the routes that compute).
"""
