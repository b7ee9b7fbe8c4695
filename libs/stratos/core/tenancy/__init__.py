"""Plans that tenants have bought, and rights of keys.

Read in this order: ``names``, ``roles``, ``prices``, ``content``, ``plan`` (the record, and the plans without any
record).
"""
