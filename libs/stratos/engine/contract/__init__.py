"""What the two wings of the engine say to each other: the host side plans, the device side computes.

Read in this order: ``plan`` (one step), ``runner`` (executes it), ``results`` (what the engine returns).
"""
