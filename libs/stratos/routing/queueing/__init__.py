"""How long each request waits.

Read in this order: ``placement_queue`` (all models), ``class_queue`` (one class of one model), ``fairness`` (tenants),
``reservations`` (room that is kept for a request that does not fit yet).
"""
