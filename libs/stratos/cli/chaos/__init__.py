"""``stratos chaos``: faults under streams of a running platform, and which promises held.

Read in this order: ``command``, ``faults`` (each with a proof that it took effect), ``streams`` (what is compared),
``scenario`` (both at once), ``promises`` (what the rows say of them), ``report``.
"""
