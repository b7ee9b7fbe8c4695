"""Who computes which block: the contract of pools, and one of processes on this machine.

Read in this order: ``contract``, ``engine_process`` (one process), ``local`` (all of them).
"""
