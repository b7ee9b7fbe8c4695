"""Keeps one issuer's keys fresh beside the requests: no request fetches anything itself."""

from __future__ import annotations

import asyncio
import logging

from jwt import PyJWK

from stratos.common.background import happens
from stratos.common.clock import Clock
from stratos_gateway.oidc.fetching import Fetch, FetchFailed
from stratos_gateway.oidc.key_set import KeySet
from stratos_gateway.oidc.settings import OidcConfig, OidcIssuer

_log = logging.getLogger(__name__)
WAIT_S = 1.0
"""Longest time that a token with an unknown key waits for the fetch that it asked for."""


class IssuerKeys:
    """The keys of one issuer.

    Args:
        issuer: whose keys.
        fetch: asks it.
        clock: monotonic.
        config: how often.
    """

    def __init__(self, issuer: OidcIssuer, fetch: Fetch, clock: Clock, config: OidcConfig) -> None:
        self.issuer = issuer
        self._fetch = fetch
        self._clock = clock
        self._config = config
        self._keys: KeySet = {}
        self._fetched_s: float | None = None
        self._begun_s = float("-inf")
        self._wanted = asyncio.Event()
        self._turn = asyncio.Event()
        self._is_fetching = False
        self._said = ""

    @property
    def is_known(self) -> bool:
        """Keys were fetched, and not too long ago."""
        return self._fetched_s is not None and self._clock.now() - self._fetched_s <= self._config.max_age_s

    async def find(self, key_id: str, algorithm: str) -> PyJWK | None:
        """The key for a signature; ``None`` where the issuer has none. May wait for one fetch."""
        found = self._keys.get((key_id, algorithm))
        # A key that is not known: the issuer may have a new one, or a client may have made it up.
        if (found is None or not self.is_known) and self._may_fetch():
            await self._next_turn()
            found = self._keys.get((key_id, algorithm))
        return found if self.is_known else None

    async def run(self) -> None:
        """Root task."""
        while True:
            await self.refresh()
            await happens(self._wanted, self._config.refresh_s)

    async def refresh(self) -> None:
        """One fetch; keys stay as they are where it fails."""
        self._wanted.clear()
        self._begun_s, self._is_fetching = self._clock.now(), True
        try:
            self._keys = await self._fetch(self.issuer)
            self._fetched_s = self._clock.now()
            self._say("" if self._keys else "it has no key for the algorithms that are set")
        except FetchFailed as error:
            self._say(str(error))
        finally:
            self._is_fetching = False
        ended, self._turn = self._turn, asyncio.Event()
        ended.set()

    def _may_fetch(self) -> bool:
        is_due = self._clock.now() - self._begun_s >= self._config.min_refresh_gap_s
        return self._is_fetching or self._wanted.is_set() or is_due

    async def _next_turn(self) -> None:
        """Wait for the fetch that runs, or for one that begins now."""
        turn = self._turn
        if not self._is_fetching:
            self._wanted.set()
        try:
            async with asyncio.timeout(WAIT_S):
                await turn.wait()
        except TimeoutError:
            return

    def _say(self, problem: str) -> None:
        """Log a change, once."""
        if problem and problem != self._said:
            _log.warning("the keys of the issuer %s are not fetched: %s", self.issuer.issuer, problem)
        elif self._said and not problem:
            _log.info("the keys of the issuer %s are fetched again", self.issuer.issuer)
        self._said = problem
