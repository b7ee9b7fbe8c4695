"""The router service: placement, queues, worker liveness. Not in the token path, and never imports torch.

Read in this order: ``placement_loop`` (calls wait for the dispatcher), ``watcher``, ``cache_follower``,
``forgetting``, ``discovery``, ``servicer``, ``service``, ``settings``.
"""
