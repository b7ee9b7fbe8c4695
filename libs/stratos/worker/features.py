"""Features that this worker offers beyond what every build can, and the refusal of requests that need more."""

from __future__ import annotations

from collections.abc import Iterable

from stratos.common.errors import FeatureUnavailable
from stratos.core.features import Feature, name_features
from stratos.core.placement import WorkerRole
from stratos.engine.contract.runner import RunnerInfo


def offered_features(role: WorkerRole, info: RunnerInfo, disabled: Iterable[str] = ()) -> frozenset[str]:
    """Features of a worker: those of its role, as far as its model has them and no setting takes them away."""
    features: set[str] = {Feature.ADAPTERS}
    if role is WorkerRole.DECODE and info.can_generate:
        features.update(Feature)
        features.remove(Feature.EMBEDDINGS)
    elif role is WorkerRole.PREFILL and info.embedding_size:
        features.add(Feature.EMBEDDINGS)
    return frozenset(features.difference(disabled))


def check_features(required: frozenset[str], offered: frozenset[str]) -> None:
    """Refuse what is not offered: it would be dropped, and the answer would not be the one that was requested.

    Raises:
        FeatureUnavailable: the text names what is lacking.
    """
    if lacking := required - offered:
        raise FeatureUnavailable(f"this worker does not offer: {name_features(lacking)}")
