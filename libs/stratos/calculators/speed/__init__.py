"""Speed of a model on devices, from its bytes and its operations: a roof, times the share of it that engines reach.

Read in this order: ``roofline``, ``batch``, ``choice`` (which device, how many), ``replicas``.
"""
