"""Syntaxes of calls, one file each: their marks, and how what follows is read.

Read in this order: ``hermes``.
"""
