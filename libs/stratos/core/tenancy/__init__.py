"""Plans that tenants have bought, and rights of keys.

Read in this order: ``names``, ``roles``, ``prices``, ``content``, ``patterns``, ``plan`` (the record, and the plans
without any record).
"""
