"""Base models that one gateway serves, by name and by digest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stratos.common.errors import InvalidCheckpoint
from stratos_gateway.models.served_model import ServedModel


class ModelSet:
    """Belongs to the event loop.

    Args:
        models: the first one is the gateway's home: routes that name no model mean it, and its name tells which
            gateways belong together.

    Raises:
        InvalidCheckpoint: two models have one name or one digest.
    """

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._by_name: dict[str, ServedModel] = {}
        self._by_digest: dict[str, ServedModel] = {}
        for model in models:
            self._add(model)
        self.home = next(iter(self._by_name.values()))

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_name.values())

    def get(self, name: str) -> ServedModel | None:
        """The model of a name; ``None`` where no base model has it."""
        return self._by_name.get(name)

    def of_digest(self, digest: str) -> ServedModel | None:
        """The model of a digest; ``None`` where it is none of this gateway."""
        return self._by_digest.get(digest)

    def name_of(self, digest: str) -> str:
        """Served name of a digest; the digest itself where it is none of this gateway."""
        model = self._by_digest.get(digest)
        return digest if model is None else model.base.name

    def close(self) -> None:
        """End the processes beside it."""
        for model in self:
            model.grammars.close()

    def _add(self, model: ServedModel) -> None:
        base = model.base
        if base.name in self._by_name:
            raise InvalidCheckpoint(f"two models have the name {base.name!r}; give each a name of its own")
        if (other := self._by_digest.get(base.digest)) is not None:
            raise InvalidCheckpoint(f"{base.name!r} and {other.base.name!r} are one model: their files are the same")
        self._by_name[base.name] = self._by_digest[base.digest] = model
