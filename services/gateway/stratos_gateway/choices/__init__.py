"""The model ``auto``, below what computes.

Read in this order: ``source`` (the rules of a tenant), ``asked`` (facts of a body that rules look at), ``settings``.
"""
