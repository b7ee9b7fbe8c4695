"""A collection of the cluster that is kept current by a watch: reading it is no call.

    list -> watch from its version on -> the watch ends: watch again from the last version
                                      -> the version is gone: list again

A watch that ends at once, or whose version is gone, is followed by a pause, as is an error: ever longer ones, until an
event comes, or a watch lasts.

What was written by this process is put in at once, so that it is seen before its event has come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from stratos.common.errors import DependencyDown, StratosError
from stratos_autoscaler.kubernetes.api import ApiServer, Object, VersionGoneError

_log = logging.getLogger(__name__)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
BRIEF_S = 1.0
"""A watch that ended sooner, without an event, ended at once."""


class Informer:
    """Belongs to the event loop.

    Args:
        api: of the cluster.
        path: of the collection.
        selector: labels of its objects; empty: all.
        name: of its only object; empty: of any.
    """

    def __init__(self, api: ApiServer, path: str, selector: str, name: str = "") -> None:
        self._api = api
        self._path = path
        self._params = {"labelSelector": selector} if selector else {}
        if name:
            self._params["fieldSelector"] = f"metadata.name={name}"
        self._objects: dict[str, Object] = {}
        self._version = ""
        """That the next watch begins at; empty: list first."""
        self._problem = "it was not listed yet"
        self._pause_s = FIRST_PAUSE_S
        self._opened_s = float("inf")
        """When the API server took the last watch, on the loop's clock."""
        self._has_events = False
        """The last watch told something."""

    def objects(self) -> Collection[Object]:
        """All objects now.

        Raises:
            DependencyDown: there is no watch, so they may be others by now.
        """
        if self._problem:
            raise DependencyDown(f"what the cluster has at {self._path} is not known: {self._problem}")
        return self._objects.values()

    def known(self, name: str) -> Object | None:
        """An object as it was seen last, current or not."""
        return self._objects.get(name)

    def put(self, name: str, changed: Mapping[str, Object]) -> None:
        """Take in what the API server answered to a write: parts of an object, ``metadata`` with its new version.

        An event of a later write may have come before the answer: then it stays.
        """
        if name in self._objects and not self._is_older(name, changed):
            self._objects[name] = {**self._objects[name], **changed}

    async def run(self) -> None:
        """Root task: list and watch until cancelled."""
        while True:
            problem = await self._turn()
            is_brief = not self._has_events and asyncio.get_running_loop().time() - self._opened_s < BRIEF_S
            if not is_brief:
                self._pause_s = FIRST_PAUSE_S
            if not problem and not is_brief:
                continue
            problem = problem or "its watch ended at once"
            if problem != self._problem:
                _log.warning("no watch: %s", problem)
            self._problem = problem
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    async def _turn(self) -> str:
        """One watch, and a list where it needs one; why it ended, empty where the API server ended it."""
        self._opened_s, self._has_events = float("inf"), False
        try:
            if not self._version:
                await self._list()
            await self._follow()
        except VersionGoneError:
            self._version = ""
            return "its version is gone"
        except StratosError as error:
            return error.message
        return ""

    async def _list(self) -> None:
        found = await self._api.read(self._path, params=self._params) or {}
        self._version = str((found.get("metadata") or {}).get("resourceVersion") or "")
        if not self._version:
            raise DependencyDown(f"{self._path} has no list with a version")
        self._objects = {item["metadata"]["name"]: item for item in found.get("items") or ()}

    async def _follow(self) -> None:
        async for kind, item in self._api.watch(self._path, self._params, self._version, self._opened):
            metadata, self._has_events = item["metadata"], True
            self._version = metadata["resourceVersion"]
            if kind == "DELETED":
                self._objects.pop(metadata["name"], None)
            elif kind != "BOOKMARK" and not self._is_older(metadata["name"], item):
                self._objects[metadata["name"]] = item

    def _opened(self) -> None:
        self._problem, self._opened_s = "", asyncio.get_running_loop().time()

    def _is_older(self, name: str, item: Mapping[str, Object]) -> bool:
        """It is from before what is known; versions of one collection are numbers that grow."""
        both = (item, self._objects.get(name) or {})
        numbers = [str(found.get("metadata", {}).get("resourceVersion", "")) for found in both]
        return all(map(str.isdecimal, numbers)) and int(numbers[0]) < int(numbers[1])
