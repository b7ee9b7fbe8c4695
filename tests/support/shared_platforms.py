"""Which files of the tests run in one process of pytest-xdist: those of a room, since they share a running platform."""

from __future__ import annotations

from pathlib import PurePosixPath

from xdist.scheduler import LoadFileScheduling

PLATFORMS = PurePosixPath("tests/integration/platform")
"""Each folder in it has one platform for all of its files."""


class RoomScheduling(LoadFileScheduling):
    """Hands out whole files, and the files of a room together."""

    def _split_scope(self, nodeid: str) -> str:
        path = PurePosixPath(nodeid.split("::")[0])
        return str(path.parent if path.parent.parent == PLATFORMS else path)


def starts_platform(path: str) -> bool:
    """Whether the tests of a file, below the repository, need a whole platform."""
    return PurePosixPath(path).is_relative_to(PLATFORMS)
