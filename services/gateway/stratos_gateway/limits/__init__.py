"""A tenant's own limits: requests and tokens per minute, sequences at once, over all gateways.

Read in this order: ``step`` (around a request), ``limiter``, ``headers``,
``settings``, ``bucket`` (one limit as this gateway sees it, without I/O), with ``demand`` (what requests want of it),
``debt`` (what is missing from it), ``pace`` (when slots are free again) and ``own_share`` (what goes on without Redis);
``leases`` (the store of all buckets), ``leaser`` (renews the slices of all of them) and ``peer_gateways`` (who shares
the limits, for a gateway that starts without Redis).
"""
