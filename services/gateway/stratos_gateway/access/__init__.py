"""API keys, and how much may be open at once.

Read in this order: ``auth``, ``settings``, ``contract`` (what holds back output), ``concurrency``,
``snapshot_metrics`` (age and state of the snapshot), ``snapshot_servicer`` (gives other gateways a copy),
``peer_copies`` (takes one), ``data_keys`` (makes missing ones), ``departed_tenants`` (drops their caches),
``moved_aliases`` (drops what an alias stood for before).
"""
