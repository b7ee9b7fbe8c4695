"""``stratos chaos``: faults under streams of a running platform, and which promises held.

Read in this order: ``command``, ``agreement`` (to what is going to be broken), ``target`` (a platform that may be
broken) and ``local_target``, ``faults`` (each with a proof that it took effect), ``kube`` (the same for a release in a
cluster), ``streams`` (what is compared), ``scenario`` (both at once), ``promises`` (what the rows say of them),
``report``.
"""
