"""Traces: files that say when each request comes, how long it is and which prefix it shares. No text of requests.

Read in this order: ``mooncake`` (the format), ``replay`` (a file as sessions of a load), ``percentile_lengths``,
``arrival_shapes`` and ``sharing`` (parts of published shapes), ``shapes`` and ``agentic`` (generators),
``export`` (a platform's ledger as a trace).
"""
