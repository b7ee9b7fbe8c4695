"""Money: what tokens cost on devices, when own ones pay, and what sharing devices saves.

Read in this order: ``cost``, ``breakeven``, ``adapters`` (many variants on one base), ``tiers`` (small models before
large ones), ``day_curve`` (how a load moves over a day), ``fleet``.
"""
