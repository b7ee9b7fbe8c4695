"""The autoscaler service: watches queue and workers, keeps the pools between their bounds.

Read in this order: ``scaler`` (the control loop over ``stratos.planning``) with ``pools`` and ``models``, ``routers``
(where the load is), ``backends`` (what starts and drains workers), ``kubernetes`` (calls to a cluster),
``model_resources`` (models as its objects), ``history`` and ``servicer`` (decisions, for people), ``board`` (numbers,
for other scalers) with ``metrics_api`` and ``keda``,
``service``, ``settings``.
"""
