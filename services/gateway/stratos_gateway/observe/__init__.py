"""What is known of a request at its end, and where it goes: counters, histograms, one line of the access log.

Read in this order: ``settings``, ``request_facts`` (filled on the way), ``request_book`` (reads it, once),
``recent_load`` (what routers are told).
"""
