"""The autoscaler service: watches queue and workers, keeps the pools between their bounds.

Read in this order: ``scaler`` (the control loop over ``stratos.planning``), ``routers`` (where the load
is), ``backends`` (what starts and drains workers), ``service``, ``settings``.
"""
