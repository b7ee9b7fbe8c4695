"""Counters that requests change, and no person: kept in Redis apart from the records, and not followed.

Read in this order: ``guard`` (which store takes it), ``leases`` (what tenants have left of their limits, over all
gateways), ``key_use`` (when each key was last used), ``redemptions`` (which answers are gone on with),
``arm_counts`` (requests of revisions that a roll-out compares).
"""
