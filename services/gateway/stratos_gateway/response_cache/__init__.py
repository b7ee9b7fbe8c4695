"""The response cache: whole answers, given again to requests whose output would be the same.

Kept are answers whose output is determined (temperature 0, or a seed of the client's) and that finished, in the memory
of each gateway.

Read in this order: ``key``, ``cache``, ``source``.
"""
