"""The engine as asyncio sees it: in a thread of this process, or in a process of its own.

Read in this order: ``base``, ``thread``, ``process``, ``child`` (the other side of ``process``), ``wire``,
``remote_port``, ``factory``, ``warm_up`` (steps before the first request).
"""
