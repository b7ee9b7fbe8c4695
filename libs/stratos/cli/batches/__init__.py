"""``stratos batch``: files of requests that a platform computes when it has room, or that are computed without one.

Read in this order: ``commands``, ``client``, ``offline``.
"""
