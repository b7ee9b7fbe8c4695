"""Heap of a process that serves: the collector of cycles leaves out what the start made, and full passes are rare.

A full pass stands in the way of everything that the event loop has to do.  A gateway's modules, schemas and tokenizer
are some 500,000 objects, which took 120 ms each time (CPython 3.11), and with 512 open requests 240 ms; in an overload
that was the p99 of refusals.  None of these objects ever becomes garbage.
"""

from __future__ import annotations

import gc

YOUNG, MIDDLE, FULL = 50_000, 3, 10
"""New objects that are left over before a pass over the youngest, such passes before one over the next generation, and
those before a full one: over a million objects more than there were.  Cycles of short-lived objects, which are nearly
all that there are, never wait for a full one.  A gateway's requests leave next to no cycles, but each has some 200
objects while it is open: with 7,000 in place of 50,000 their coming and going made up passes that found nothing and
were 4 % of its CPU with 32 open requests and 13 % with 256, each of up to 14 ms; the rare ones now take up to 25."""


def settle_heap() -> None:
    """Keep all that is there now out of later passes; for a process that has started, before it serves."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, FULL)
