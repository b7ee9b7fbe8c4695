"""Fleets under a virtual clock: real engines, queues, bookings and policies, where only the model computes nothing.

A step of a worker takes the time of a cost model, statuses and cache changes reach the router at their real
rate, and an hour of a fleet takes a minute or less.  Nothing here starts a process or opens a socket.

Read in this order: ``timeline`` (events), ``runner`` (what a step costs), ``worker``, ``router``, ``traces`` (requests
of clients), ``fleet`` (all of them together), ``report``.
"""
