"""Experts of a layer that are stored together.

Read ``interleaved``.
"""
