"""Commands of ``stratos models``.

Read in this order: ``stored`` (in the object store: publish, fetch), ``served`` (by a platform: add, alias, roll out).
"""
