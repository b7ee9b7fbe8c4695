"""Which of the workers that may run a request should run it: policies as configuration, one per pool.

A policy narrows the workers by its filters, scores what is left by its weighted scorers, and picks.

Read in this order: ``settings`` (what can be configured, and policies with a name), ``scorers``, ``filters``,
``pickers``, ``policies`` (all of them together).
"""
