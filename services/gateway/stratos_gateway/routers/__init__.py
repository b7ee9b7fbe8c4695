"""All routers, as one: which exist, which answers, and which one is asked.

Read in this order: ``contract`` (what a request asks of them), ``settings``, ``router_set``, ``link`` (one router),
``outbox`` and ``conviction_exchange`` (reports and convictions that it has not got yet).
"""
