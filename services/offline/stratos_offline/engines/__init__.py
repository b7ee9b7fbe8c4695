"""Engines that compute lines: a gateway and a worker in one process, or an echo of them.

Read in this order: ``contract``, ``placement`` (the one worker is the router's only choice), ``worker`` (the worker in
this event loop), ``whole`` (gateway and worker), ``echo``, ``block_worker`` (a block to its checkpoint).
"""
