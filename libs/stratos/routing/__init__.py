"""Placement as pure functions: which workers may run a request, which one should, and how long each request waits.

Read in this order: ``queueing`` (waiting), ``worker_view``, ``fleet_views``, ``filters``, ``admission``, ``policy``,
``picker`` (where it runs), ``bookings``, ``liveness``, ``fleet_state``, ``dispatch`` (all of them together),
``settings``.
"""
