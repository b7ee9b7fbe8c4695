"""How long each request waits.

Read in this order: ``ticket`` (a request that waits), ``placement_queue`` (all models), ``class_queue`` (one class of
one model), ``fairness`` (tenants), ``heads`` (the next of them), ``reservations`` (room that is kept for a request that
does not fit yet), ``positions`` (where each one stood, over time).
"""
