"""``stratos batch``: files of requests that a platform computes when it has room.

Read in this order: ``commands``, ``client``.
"""
