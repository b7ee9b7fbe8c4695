"""A child of a process must not use the random bytes that its parent uses."""

from __future__ import annotations

import os

from stratos.common import ids
from stratos.common.ids import new_id


def test_a_child_draws_nothing_that_its_parent_has_drawn() -> None:
    new_id("req")
    assert ids.drawn
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, b"%d" % len(ids.drawn))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 16) == b"0"
    os.close(reader)
    os.close(writer)
