"""Searches over loads: how many requests a second, or streams at once, a platform bears.

Read in this order: ``bracket`` (doubling and halving; pure), ``criteria`` (what is borne), ``modes`` (``--find``).
"""
