"""Ground floor of every library: errors, clocks, identifiers, TLS.

Read in this order: ``errors`` (one tree, with status codes as data), ``continuation_errors``, ``slow_peers``,
``error_codes``, ``clock``, ``ids``, ``leb128`` (numbers as bytes), ``buckets`` (counts of histograms), ``files``,
``bugs`` (how a bug is logged), ``background`` (work that outlives its call), ``tls`` (certificates of a process).
"""
