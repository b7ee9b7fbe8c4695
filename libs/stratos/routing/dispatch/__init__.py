"""The decisions of one router, without waiting: what is refused, what is placed where, what is booked.

Read in this order: ``dispatcher`` (life of a request), ``intake`` (refused at once, or queued), ``memory_pressure``
(who is refused before the KV pools are full), ``placer`` (waiting meets workers) with ``isolation``, ``full_models``,
``pool_room`` and ``room_table`` (what need not be tried), ``fleet_bounds`` (the queue hears of that), ``booking_desk``
(a choice becomes a placement), ``explanations`` (why a wait was in vain).
"""
