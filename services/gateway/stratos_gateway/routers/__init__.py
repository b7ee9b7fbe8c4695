"""All routers, as one: which exist, which answers, and which one is asked.

Read in this order: ``contract`` (what a request asks of them), ``settings``, ``preference`` (who is asked first),
``link`` (one router), ``outbox`` and ``conviction_exchange`` (what it is still to be told), ``router_set``.
"""
