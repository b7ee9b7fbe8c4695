"""Facts of a request at its end, and where they go: counters, histograms, one line of the access log.

Read in this order: ``settings``, ``step`` (counts what answers took), ``request_book`` (every request,
once), ``recent_load`` (what routers are told).
"""
