"""The response cache: whole answers, given again to requests whose output would be the same.

Kept are answers whose output is determined (temperature 0, or a seed of the client's) and that finished: in the memory
of the gateway that sent them, and sealed in Redis for the others.

Read in this order: ``key``, ``cache`` (in memory), ``codec``, ``shared`` (in Redis), ``source``.
"""
