"""Resources of this machine for a platform: how much each worker takes of it, and what is wrong with it.

Read in this order: ``sizing`` (before a start), then ``environment`` and ``doctor`` (``stratos doctor``).
"""
