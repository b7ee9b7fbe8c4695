"""The router service: placement, queues, worker liveness. Not in the token path, and never imports torch.

Read in this order: ``scheduler`` (waiting requests to workers), ``fleet``, ``watcher``, ``cache_follower``,
``forgetting``, ``discovery``, ``servicer``, ``service``, ``settings``.
"""
