"""Faults of a running platform, each with a proof that it took effect; none needs root.

Read in this order: ``fault`` (names of all), ``contract``, ``processes`` (``kill``, ``stop``, ``slow``), ``leaving``
(``drain``), ``clock`` over ``clock_code``, ``cuts`` (``reset``, ``partition``) over ``sockets``, ``kv_bytes``
(``corrupt``), ``host_tier`` (``corrupt-tier``), ``disk_tier`` (``corrupt-disk``), ``shortages`` (``full-disk``,
``memory``), ``store_away`` (``gone``), ``waking`` (what undoes them in the end).
"""
