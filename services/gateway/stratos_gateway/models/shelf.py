"""Keeps the set of models as the followed records say: tokenizers are loaded and dropped while requests run.

    a record comes ──▶ LOADING ──▶ SERVING        its files are read in a thread, a few models at once
                          └─────▶ REFUSED        by name and reason; no other model notices
    it changes         the revision that is served stays until the new terms are loaded
    it is deleted      no new request gets the revision; the requests that it runs keep what they have

A gateway never sees a model's weights, so a record costs it the size of a tokenizer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from stratos.common.background import happens
from stratos.common.clock import Clock
from stratos.common.errors import DependencyDown, NotFound, StratosError
from stratos.store.models.model_record import ModelRecord
from stratos.store.models.texts import AlteredWords
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.models.settings import ModelConfig, ModelRecordsConfig

_log = logging.getLogger(__name__)
MAX_AT_ONCE = 4
"""Models that are read at once."""
FIRST_WAIT_S = 10.0
"""A gateway that starts waits for its models so long at most before it is ready: a slow one holds up no other."""
TOO_MANY = "more records than MODEL_RECORDS__MAX_MODELS"
ARRIVAL_S = 5.0
"""Longest wait of a request for a model that is loaded."""
_PASSING = DependencyDown, NotFound, AlteredWords
"""Refusals that may pass: a store is away, shows some of what was put later, or gets again what it had lost."""


class Phase(StrEnum):
    """How a record stands at this gateway."""

    LOADING = "loading"
    SERVING = "serving"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A record of a model, and which version of it this is."""

    record: ModelRecord
    version: int
    """Microseconds: a revision that was added later is newer."""


@dataclass(slots=True, kw_only=True)
class Placed:
    """A record at this gateway."""

    wanted: Wanted
    phase: Phase = Phase.LOADING
    reason: str = ""
    """Why it is refused; for people of the platform."""
    said: str = ""
    """Reason that was logged last."""
    may_recover: bool = False
    """It is refused for what may pass by itself."""
    needs_place: bool = False
    """It is refused for what another record has, and is tried again when one goes."""
    is_due: bool = False
    """It is to be tried again."""
    work: asyncio.Task[None] | None = None

    @property
    def is_kept(self) -> bool:
        """It takes a place."""
        return self.phase is not Phase.REFUSED

    def is_meant(self, name: str, digits: str) -> bool:
        """It is of this name, and its digest begins with these digits; either may be empty."""
        record = self.wanted.record
        return name in ("", record.name) and record.digest.startswith(digits)

    @property
    def is_coming(self) -> bool:
        """It may be served a while later."""
        return self.phase is Phase.LOADING or self.may_recover

    def stop(self) -> None:
        """Give up loading it."""
        if self.work is not None:
            self.work.cancel()


class ModelArrivals(Protocol):
    """``ModelShelf.wait_for`` is one."""

    async def __call__(self, name: str, digits: str = "") -> None:
        """Wait a moment for a model that was just added, or one revision of it; raises ``DependencyDown`` where it may
        be served a while later."""
        ...


async def no_arrivals(name: str, digits: str = "") -> None:
    """No model comes while this gateway runs."""


class TextSource(Protocol):
    """``stratos.store.models.texts.TextFolders`` is one."""

    async def fetch(self, digest: str) -> Path:
        """A folder with the text files of a digest; raises ``StratosError``."""
        ...

    async def keep(self, digests: set[str]) -> None:
        """Delete all others."""


class ModelShelf:
    """Belongs to the event loop.

    Args:
        wanted: the records by id, as they are now.
        models: what is served, which this changes.
        texts: where tokenizers come from.
        config: how many, and when refused ones are tried again.
        clock: of the first loads.
        on_change: called after a record's state has changed.
    """

    def __init__(
        self,
        wanted: Callable[[], Mapping[str, Wanted]],
        models: ModelSet,
        texts: TextSource,
        config: ModelRecordsConfig,
        clock: Clock,
        on_change: Callable[[Mapping[str, Placed]], None] = lambda placed: None,
    ) -> None:
        self._wanted = wanted
        self._models = models
        self._texts = texts
        self._config = config
        self._clock = clock
        self._on_change = on_change
        self._ready_at_s: float | None = None
        self._changed = asyncio.Event()
        self._changed.set()
        self._places = asyncio.Semaphore(MAX_AT_ONCE)
        self._said: dict[str, str] = {}
        self.placed: dict[str, Placed] = {}
        """All records by id, as they stand here."""
        self._checked: tuple[ModelRecord, ServedModel] | None = None
        """What was loaded before it was recorded."""
        self._read_now: Counter[str] = Counter()
        """Texts that are read, by digest."""
        self._served_texts: dict[str, str] = {}
        """Texts of each revision that is served, also while another version of its record is refused."""

    def note_change(self) -> None:
        """Records may have changed."""
        self._changed.set()

    def not_ready_reason(self) -> str:
        """Why requests for what records name would be refused; asked once all records are known, from any thread.

        Models that come later, or take longer than a while, hold nothing up.
        """
        if self._ready_at_s is None:
            self._ready_at_s = self._clock.now() + FIRST_WAIT_S
        if self._clock.now() < self._ready_at_s:
            if self._changed.is_set() or any(placed.work is not None for placed in list(self.placed.values())):
                return "models are loaded for the first time"
            if self._models.has_choice and not self._models.has_looked:
                return "no router has said yet which revisions have workers"
        self._ready_at_s = 0.0
        return ""

    async def check(self, record: ModelRecord) -> ServedModel:
        """Load a model that is not recorded yet, which is kept for its record; raises ``StratosError`` with what is
        wrong with it."""
        model = await self._read(record)
        self._checked = record, model
        return model

    async def wait_for(self, name: str, digits: str = "") -> None:
        """Wait a moment for a model that was just added, so that it serves from then on at every gateway.

        Args:
            name: of the model; empty where the digits tell it.
            digits: first ones of the revision that is needed; empty for any.

        Raises:
            DependencyDown: it is recorded, and may be served a while later.
        """
        if self._changed.is_set():
            self._settle()
        works = [p.work for p in self.placed.values() if p.work is not None and p.is_meant(name, digits)]
        if works:
            await asyncio.wait(works, timeout=ARRIVAL_S)
        is_coming = any(p.is_coming and p.is_meant(name, digits) for p in self.placed.values())
        if is_coming and not self._models.of_digits(name, digits):
            what = f"the model {name!r}" if not digits else f"the revision {digits[:12]}"
            raise DependencyDown(f"{what} is recorded, and this gateway has not loaded it yet")

    async def run(self) -> None:
        """Root task: follow the records until cancelled."""
        try:
            while True:
                self._settle()
                await self._pause()
        finally:
            for placed in self.placed.values():
                placed.stop()

    async def _pause(self) -> None:
        """Wait for a change; once in a while what was refused for now is begun again."""
        waits = any(placed.may_recover for placed in self.placed.values())
        if not await happens(self._changed, self._config.retry_s if waits else None):
            for placed in self.placed.values():
                placed.is_due = placed.may_recover

    def _settle(self) -> None:
        """Drop what is gone, and begin to load what is new."""
        self._changed.clear()
        wanted = self._wanted()
        gone = self.placed.keys() - wanted.keys()
        for record_id in gone:
            self._forget(record_id)
        for other in self.placed.values() if gone else ():
            other.is_due |= other.needs_place
        due = [
            record_id
            for record_id, found in wanted.items()
            if (placed := self.placed.get(record_id)) is None or placed.is_due or placed.wanted.version != found.version
        ]
        for record_id in due:
            self._take_off(record_id)
        kept = {placed.wanted.record.digest for placed in self.placed.values() if placed.is_kept}
        for record_id in sorted(due, key=lambda record_id: wanted[record_id].version):
            self._place(record_id, wanted[record_id], kept)
        self._on_change(self.placed)

    def _take_off(self, record_id: str) -> None:
        """Make place for another version of a record; what is served of it goes on until that is loaded."""
        if (before := self.placed.pop(record_id, None)) is not None:
            before.stop()
            self._said[record_id] = before.reason

    def _forget(self, record_id: str) -> None:
        placed = self.placed.pop(record_id)
        placed.stop()
        record = placed.wanted.record
        if not self._has(record.digest):
            self._models.drop(record.digest)
            self._served_texts.pop(record.digest, None)
            _log.info("model %s, digest %s, is served no more", record.name, record.digest)

    def _place(self, record_id: str, wanted: Wanted, kept: set[str]) -> None:
        """Begin to load a record, or refuse it; ``kept`` are the digests that have a place."""
        digest = wanted.record.digest
        placed = self.placed[record_id] = Placed(wanted=wanted, said=self._said.pop(record_id, ""))
        if digest in kept:
            self._refuse(placed, "another name has this digest already")
            placed.needs_place = True
        elif len(kept) >= self._config.max_models:
            self._refuse(placed, f"{TOO_MANY}: {self._config.max_models}")
            placed.needs_place = True
        else:
            kept.add(digest)
            placed.work = asyncio.create_task(self._load(placed), name=f"load model {wanted.record.name}")

    def _has(self, digest: str) -> bool:
        return any(other.is_kept and other.wanted.record.digest == digest for other in self.placed.values())

    async def _load(self, placed: Placed) -> None:
        record = placed.wanted.record
        try:
            self._models.put(await self._read(record), placed.wanted.version)
        except StratosError as error:
            self._refuse(placed, error.message, may_recover=isinstance(error, _PASSING))
        except Exception as error:  # a task's edge: strange files of one model end no other
            self._refuse(placed, f"it cannot be read: {error!r}"[:200])
        else:
            self._served_texts[record.digest] = record.text_digest
            placed.phase = Phase.SERVING
            _log.info("model %s, digest %s, is served", record.name, record.digest)
        placed.work = None
        self._on_change(self.placed)
        if placed.phase is Phase.REFUSED and not placed.may_recover:
            self._give_place()
        await self._texts.keep(self._needed_texts())

    def _needed_texts(self) -> set[str]:
        kept = {other.wanted.record.text_digest for other in self.placed.values() if other.is_kept}
        checked = set() if self._checked is None else {self._checked[0].text_digest}
        return kept | checked | self._read_now.keys() | set(self._served_texts.values())

    def _give_place(self) -> None:
        """Let the oldest record that waits for a place be tried again: one is free."""
        kept = {placed.wanted.record.digest for placed in self.placed.values() if placed.is_kept}
        waiting = [p for p in self.placed.values() if p.needs_place and p.wanted.record.digest not in kept]
        if waiting:
            min(waiting, key=lambda placed: placed.wanted.version).is_due = True
            self._changed.set()

    async def _read(self, record: ModelRecord) -> ServedModel:
        async with self._places:
            if self._checked is not None and self._checked[0] == record:
                (_, model), self._checked = self._checked, None
                return model
            self._read_now[record.text_digest] += 1
            try:
                folder = await self._texts.fetch(record.text_digest)
                return await asyncio.to_thread(ServedModel.load_texts, _config(record, folder), record.created_unix_s)
            finally:
                self._read_now -= Counter([record.text_digest])

    def _refuse(self, placed: Placed, reason: str, *, may_recover: bool = False) -> None:
        """Refuse a record; a version of it that is served already goes on."""
        placed.phase, placed.reason, placed.may_recover = Phase.REFUSED, reason, may_recover
        record = placed.wanted.record
        if placed.said != reason:
            _log.warning("model %s, digest %s, is refused: %s", record.name, record.digest, reason)
        placed.said = reason
        if may_recover:
            self._changed.set()  # the wait for changes gets an end


def _config(record: ModelRecord, folder: Path) -> ModelConfig:
    terms = {field.name: getattr(record, field.name) for field in fields(ModelConfig) if field.name != "path"}
    return ModelConfig(path=folder, **terms)
