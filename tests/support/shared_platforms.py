"""Which files of the tests run in one process of pytest-xdist, and beside which others.

The files of a room run in one process, since they share a running platform.

Half of the processes take what computes, whole platforms first; the others take what mostly waits. When a side has
nothing left, its processes help the other one. In one order for all, four processes of two cores wait for minutes,
and then compute for minutes.

A process that dies costs the test that it died of.  xdist 3.8 hands out again all that the process ever had; what had
passed is then work without tests, for which the others wait for ever (its issues 1327 and 1378).
"""

from __future__ import annotations

import functools
from contextlib import suppress
from pathlib import PurePosixPath

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

PLATFORMS = PurePosixPath("tests/integration/platform")
"""Each folder in it has one platform for all of its files."""
WAITING = (PurePosixPath("tests/integration"), PurePosixPath("tests/conformance"))
"""Their tests wait for other processes and for servers, those of whole platforms less than the others."""


class RoomScheduling(LoadFileScheduling):
    """Hands out whole files, and the files of a room together."""

    def _split_scope(self, nodeid: str) -> str:
        return _room(nodeid.split("::")[0])

    def remove_node(self, node: WorkerController) -> str | None:
        """Take a process out; returns the test that it died of, and hands out those that it has not begun."""
        workload = self.assigned_work.pop(node)
        left = [(scope, test) for scope, unit in workload.items() for test, is_done in unit.items() if not is_done]
        for scope, test in left[1:]:
            self.workqueue.setdefault(scope, {})[test] = False
        for other in self.assigned_work:
            self._reschedule(other)
        return left[0][1] if left else None

    def _assign_work_unit(self, node: WorkerController) -> None:
        side = bool(int(node.gateway.id.removeprefix("gw")) % 2)  # not by who came first, which is chance
        if (first := next((scope for scope in self.workqueue if mostly_waits(scope) is side), None)) is not None:
            self.workqueue.move_to_end(first, last=False)
        with suppress(OSError):  # it has died, and the news of it comes next: what was its own is handed out again
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if node not in self.registered_collections:
            return  # it came for one that died and still collects: its turn is when it has
        super()._reschedule(node)
        # A process begins a test when it knows the next one, or that there is none.
        while not node.shutting_down and self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()


@functools.cache
def _room(path: str) -> str:
    file = PurePosixPath(path)
    return str(file.parent if file.parent.parent == PLATFORMS else file)


@functools.cache
def starts_platform(path: str) -> bool:
    """Whether the tests of a file, below the repository, need a whole platform."""
    return PurePosixPath(path).is_relative_to(PLATFORMS)


def mostly_waits(path: str) -> bool:
    """Whether the tests of a file or room, below the repository, leave most of a core to others."""
    return not starts_platform(path) and any(PurePosixPath(path).is_relative_to(folder) for folder in WAITING)
