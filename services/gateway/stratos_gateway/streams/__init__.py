"""Streams that outlive their gateway: a record of each, from which any gateway goes on with it.

Read in this order: ``asking`` (which requests have a record), ``codec`` (what is in it), ``owned`` and ``desk`` (how it
is written), ``cursor`` and ``numbering`` (ids of events), ``followed`` (an answer that has a record already), ``join``
and ``step`` (a request meets its record), ``routes``.
"""
