"""Gateways at one real Redis under virtual time, what tenants' limits promise of them, and defects to find by it."""
