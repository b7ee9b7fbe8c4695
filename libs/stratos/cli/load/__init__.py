"""Load on any OpenAI-compatible server, and what it meant: ``stratos bench``.

A run sends what a workload plans at the times that an arrival process gives, counts each latency from the intended
arrival, and says itself when the client and not the server was the bottleneck.

Read in this order: ``workload`` (which requests, when; pure), ``traces`` (the same from files), ``measured`` (records
of a run), ``client`` (sends them), ``report`` (what it means; pure), ``options`` (flags), ``harness`` (a run from flags
to report), ``progress`` (while it goes on), ``search`` (how much is borne), ``plots`` (a page of runs).
"""
