"""Models as objects of a cluster, of kind ``Model``: brought up, shown in their status, and retired.

    spec ──▶ the chart's objects, filled ──▶ a plan: what to apply, to delete, to say ──▶ one write after the other

Read in this order: ``wanted`` (all objects of a Model), ``observed`` (objects that there are), ``problems`` (why pods
do not serve), ``steps`` (writes), ``records`` (jobs), ``status``, ``plan``, ``drains`` (how long one that leaves
waits), ``cluster`` (reads and writes), ``reconciler``.
"""
