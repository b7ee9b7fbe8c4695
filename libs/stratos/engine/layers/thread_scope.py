"""How many threads the operations of the calling thread take, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Operations of the calling thread take ``count`` threads; afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """The calling thread computes alone, without a team of threads of its own.

    OpenMP gives every thread that computes in parallel its own team.  When the teams have more threads than there are
    cores, GNU's runtime lets all of them sleep at the end of every operation instead of spinning for a moment, which
    costs the step loop a wake-up per operation (measured: 3 to 6 of 20 ms of a decode step).
    """
    with using_threads(1):
        yield
