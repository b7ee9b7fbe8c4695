"""A collection of a fake API server with a history: versions, watches from one of them on, and what is forgotten."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

Object = dict[str, Any]


class CutError(Exception):
    """A connection that ends in the middle of its answer."""


class Collection(dict[str, Object]):
    """Objects by name. Setting, deleting and ``changed`` make events.

    Args:
        next_version: of the whole cluster.
    """

    def __init__(self, next_version: Callable[[], int]) -> None:
        super().__init__()
        self._next_version = next_version
        self._log: list[tuple[int, bytes]] = []
        self._forgotten = 0
        self._is_gone_in_stream = False
        self._streams: dict[asyncio.Event, str] = {}
        """What wakes each watch, and how it ends: not yet (empty), done, cut, or with a line that is no event."""
        self.is_silent = False
        """No event reaches a watch."""
        self.num_lists = 0
        self.watched_from: list[int] = []
        """Versions that watches began at."""

    def __setitem__(self, name: str, found: Object) -> None:
        kind = "MODIFIED" if name in self else "ADDED"
        super().__setitem__(name, found)
        self._note(kind, found)

    def __delitem__(self, name: str) -> None:
        found = self[name]
        super().__delitem__(name)
        self._note("DELETED", found)

    def pop_with_event(self, name: str) -> Object:
        """The object, which is gone."""
        found = self[name]
        del self[name]
        return found

    def changed(self, name: str) -> None:
        """An object was changed in place."""
        self._note("MODIFIED", self[name])

    def bookmark(self) -> None:
        """Tell watches a version to go on from, without a change."""
        self._note("BOOKMARK", {"metadata": {}})

    def forget(self, *, before_last: bool = False, in_stream: bool = False) -> None:
        """No watch may begin before now, or before the last event: 410, as a status, or as an event of a stream."""
        self._forgotten = self._log[-1][0] if before_last else self._next_version()
        self._is_gone_in_stream = in_stream

    def end_watches(self, how: str = "done") -> None:
        """Every open watch ends: done, as after its time; cut, as when the connection breaks; or with this line."""
        for event in self._streams:
            self._streams[event] = how
            event.set()

    def answer_get(self, request: Request) -> Response:
        """A list, or a watch."""
        if request.query_params.get("watch") != "true":
            self.num_lists += 1
            return JSONResponse({"metadata": {"resourceVersion": str(self._next_version())}, "items": [*self.values()]})
        since = int(request.query_params["resourceVersion"])
        self.watched_from.append(since)
        if since >= self._forgotten:
            return StreamingResponse(self._stream(since))
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        if self._is_gone_in_stream:
            return Response(_line("ERROR", gone))
        return JSONResponse(gone, status_code=410)

    def _note(self, kind: str, found: Object) -> None:
        version = self._next_version()
        found["metadata"]["resourceVersion"] = str(version)
        if not self.is_silent:
            self._log.append((version, _line(kind, found)))
        for event in self._streams:
            event.set()

    async def _stream(self, since: int) -> AsyncIterator[bytes]:
        news = asyncio.Event()
        self._streams[news] = ""
        try:
            while True:
                news.clear()
                how = self._streams[news]
                if how == "cut":
                    raise CutError
                for version, line in self._log:
                    if version > since:
                        since = version
                        yield line
                if how:
                    yield b"" if how == "done" else f"{how}\n".encode()
                    return
                await news.wait()
        finally:
            del self._streams[news]


def _line(kind: str, found: Object) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"
