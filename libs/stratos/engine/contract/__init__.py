"""Records between the two wings of the engine: the host side plans, the device side computes.

Read in this order: ``plan`` (one step), ``kept_tables`` (what it builds on), ``runner`` (executes it), ``results``
(what the engine returns).
"""
