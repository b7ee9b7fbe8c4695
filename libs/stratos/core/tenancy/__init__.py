"""What a tenant has bought, and what a key may do.

Read in this order: ``names``, ``roles``, ``prices``, ``content``, ``plan`` (the record, and the plans without any
record).
"""
