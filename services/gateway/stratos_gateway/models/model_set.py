"""Base models that one gateway serves: revisions by digest, and for each name the revision that new requests get.

put ──▶ a further revision: the name goes on with the one it has
        see_live: the newest revision that has live workers is the name's; where none has, nothing changes
drop ──▶ the name goes on with what is left; requests that run keep the revision they began with
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from stratos.common.errors import InvalidCheckpoint
from stratos_gateway.models.served_model import ServedModel

FIRST = 0
"""Order of the models that settings name: older than any record."""


@dataclass(slots=True)
class _Revision:
    model: ServedModel
    order: int
    """A higher one is newer."""
    is_fixed: bool = False
    """Settings name it."""


class ModelSet:
    """Belongs to the event loop.

    Args:
        models: those that settings name. The first one has the name of the gateway's home: routes that name no model
            mean it, and it tells which gateways belong together.

    Raises:
        InvalidCheckpoint: two models have one name or one digest.
    """

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._revisions: dict[str, _Revision] = {}
        self._current: dict[str, ServedModel] = {}
        self._names: dict[str, str] = {}
        """Name of every digest that was ever served here: attempts of a dropped revision still find their router."""
        self._live: Set[str] = frozenset()
        self.has_looked = False
        """It is known which revisions have live workers."""
        self._has_split = False
        self._listeners: list[Callable[[], None]] = []
        self._successions: list[Callable[[], None]] = []
        for model in models:
            if model.base.name in self._current:
                raise InvalidCheckpoint(f"two models have the name {model.base.name!r}; give each a name of its own")
            self._take(_Revision(model, FIRST, is_fixed=True))
        self._home = next(iter(self._current))

    @property
    def home(self) -> ServedModel:
        """The model of routes that name none."""
        return self._current[self._home]

    def __iter__(self) -> Iterator[ServedModel]:
        """For each name the revision that new requests get."""
        return iter(self._current.values())

    @property
    def revisions(self) -> tuple[ServedModel, ...]:
        """All that are served, those included that only running requests use."""
        return tuple(revision.model for revision in self._revisions.values())

    def digests(self) -> tuple[str, ...]:
        """Digests of all that are served, that of the home first."""
        return tuple(dict.fromkeys([self.home.base.digest, *self._revisions]))

    @property
    def has_choice(self) -> bool:
        """Some name or alias has several revisions, so it matters which ones have live workers."""
        return self._has_split or len(self._revisions) > len(self._current)

    def get(self, name: str) -> ServedModel | None:
        """The model of a name; ``None`` where no base model has it."""
        return self._current.get(name)

    def of_digest(self, digest: str) -> ServedModel | None:
        """The revision of a digest; ``None`` where it is none of this gateway."""
        revision = self._revisions.get(digest)
        return None if revision is None else revision.model

    def of_digits(self, name: str, digits: str) -> Sequence[ServedModel]:
        """Revisions of a name, of any if it is empty, whose digests begin with some digits."""
        found = (revision.model for digest, revision in self._revisions.items() if digest.startswith(digits))
        return [model for model in found if name in ("", model.base.name)]

    def is_live(self, digest: str) -> bool:
        """Whether a revision had workers that can take a request, at the last look."""
        return digest in self._live

    def fixed(self, digest: str) -> ServedModel | None:
        """The model of a digest that settings name; ``None`` where they do not."""
        revision = self._revisions.get(digest)
        return None if revision is None or not revision.is_fixed else revision.model

    def name_of(self, digest: str) -> str:
        """Served name of a digest, also of one that was dropped; the digest itself where it never was one of these."""
        return self._names.get(digest, digest)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever revisions came or went."""
        self._listeners.append(listener)

    def on_succession(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever ``is_superseded`` may have changed."""
        self._successions.append(listener)

    def is_superseded(self, digest: str) -> bool:
        """Whether a revision had no workers at the last look, while the one of its name that new requests get had."""
        if not self.has_looked or self.is_live(digest):
            return False
        now = self._current.get(self.name_of(digest))
        return now is not None and self.is_live(now.base.digest)

    def note_aliases(self, *, has_choice: bool) -> None:
        """Some alias has several targets, or none has."""
        if has_choice != self._has_split:
            self._has_split = has_choice
            self._tell()

    def put(self, model: ServedModel, order: int) -> None:
        """Serve a revision from now on, or serve it with other terms; settings win where they name it, too.

        Args:
            model: what was loaded.
            order: higher than that of every revision that it is to replace.

        Raises:
            InvalidCheckpoint: its digest has another name.
        """
        known = self._revisions.get(model.base.digest)
        if known is not None and known.model.base.name != model.base.name:
            raise self._one_model(model, known.model)
        if known is not None and known.is_fixed:
            known.order = order
        else:
            self._revisions[model.base.digest] = _Revision(model, order)
        self._names[model.base.digest] = model.base.name
        self._choose(model.base.name)
        self._tell()

    def drop(self, digest: str) -> None:
        """Take a revision away; one that settings name becomes the oldest again."""
        revision = self._revisions.get(digest)
        if revision is None:
            return
        if revision.is_fixed:
            revision.order = FIRST
        else:
            del self._revisions[digest]
            self._live = self._live - {digest}  # should it come again, its workers may have gone
        self._choose(revision.model.base.name)
        self._tell()

    def see_live(self, digests: Set[str]) -> None:
        """Take over which revisions have live workers."""
        self._live, self.has_looked = digests, True
        for name in list(self._current):
            self._choose(name)
        for listener in self._successions:
            listener()

    def close(self) -> None:
        """End the processes beside it."""
        for revision in self._revisions.values():
            revision.model.grammars.close()

    def _take(self, revision: _Revision) -> None:
        base = revision.model.base
        if (other := self._revisions.get(base.digest)) is not None:
            raise self._one_model(revision.model, other.model)
        self._revisions[base.digest], self._current[base.name] = revision, revision.model
        self._names[base.digest] = base.name

    def _choose(self, name: str) -> None:
        """Settle which revision new requests for a name get."""
        found = [revision for revision in self._revisions.values() if revision.model.base.name == name]
        if not found:
            self._current.pop(name, None)
            return
        found.sort(key=lambda revision: revision.order)
        served = [revision.model for revision in found]
        live = [model for model in served if model.base.digest in self._live]
        now = self._current.get(name)
        stays = next(
            (model for model in served if now is not None and model.base.digest == now.base.digest), served[-1]
        )
        self._current[name] = live[-1] if live else stays

    def _tell(self) -> None:
        for listener in (*self._listeners, *self._successions):
            listener()

    @staticmethod
    def _one_model(model: ServedModel, other: ServedModel) -> InvalidCheckpoint:
        return InvalidCheckpoint(f"{model.base.name!r} and {other.base.name!r} are one model: their files are the same")
