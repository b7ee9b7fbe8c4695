"""What a tenant has bought, and what a key may do.

Read in this order: ``roles``, ``prices``, ``content``, ``plan`` (the record, and the plans that are there without any
record).
"""
