"""Many simulated workers in one process: real scheduler, block manager and services; the model is arithmetic.

To routers and gateways each is a worker of its own, with an address, a status stream and sessions.  A step costs no
computing; it takes the time of a cost model.  Never imports torch.

Read in this order: ``engine`` (steps without a thread), ``settings``, ``fleet`` (all workers), ``__main__``.
"""
