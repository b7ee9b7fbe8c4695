"""Watches that end at once, on a virtual clock: the API server is not flooded, and its first event ends the pauses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from stratos.common.errors import DependencyDown
from stratos_autoscaler.kubernetes.api import ApiServer, Object, VersionGoneError
from stratos_autoscaler.kubernetes.informer import LONGEST_PAUSE_S, Informer
from tests.support.virtual_loop import run_virtual

POD: Object = {"metadata": {"name": "pod", "resourceVersion": "7"}}


class HastyServer(ApiServer):
    """Every watch ends as soon as it was answered.

    Args:
        is_gone: it says that the version is too old, after a list as well.
    """

    def __init__(self, is_gone: bool) -> None:
        self.is_gone = is_gone
        self.num_watches = 0
        self.has_news = False
        """The next watch tells of a pod."""
        self.told = asyncio.Event()

    async def read(self, path: str, **_: object) -> Object | None:
        return {"metadata": {"resourceVersion": "1"}, "items": []}

    async def watch(
        self, path: str, params: Mapping[str, str], version: str, opened: Callable[[], None]
    ) -> AsyncIterator[tuple[str, Object]]:
        self.num_watches += 1
        await asyncio.sleep(0.01)
        if self.is_gone:
            raise VersionGoneError
        opened()
        if self.has_news:
            self.has_news = False
            self.told.set()
            yield "ADDED", POD


@pytest.mark.parametrize("is_gone", [False, True])
def test_watches_that_end_at_once_are_few(is_gone: bool) -> None:
    async def main() -> None:
        api = HastyServer(is_gone)
        informer = Informer(api, "/pods", "")
        following = asyncio.create_task(informer.run())
        await asyncio.sleep(60)
        assert api.num_watches < 60 / LONGEST_PAUSE_S + 10
        with pytest.raises(DependencyDown):
            informer.objects()
        api.is_gone, api.has_news = False, True
        await asyncio.wait_for(api.told.wait(), LONGEST_PAUSE_S + 1)
        await asyncio.sleep(0.01)
        assert informer.known("pod") == POD
        before = api.num_watches
        await asyncio.sleep(1)
        assert api.num_watches > before + 2, "pauses begin short again"
        following.cancel()

    run_virtual(main())
