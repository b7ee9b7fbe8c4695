"""Models whose workers have no batch slot left, so that a long queue is not tried against them one by one.

The shortcut is exact.  When a request was refused for want of batch slots alone, every request that needs as many batch
slots, no more KV and no other features, and to which no worker is closed, is refused for the same reason until the
fleet changes.
"""

from __future__ import annotations

from stratos.core.placement import Work
from stratos.routing.admission import Ask
from stratos.routing.filters import Rejection
from stratos.routing.picker import Refusal

_NOT_CANDIDATES = frozenset({Rejection.ROLE, Rejection.MODEL, Rejection.OUT, Rejection.BATCH_SLOTS})


class FullModels:
    """Refusals for want of batch slots at one version of the fleet."""

    def __init__(self) -> None:
        self._version = -1
        self._refused: dict[tuple[str, Work], Ask] = {}

    def learn(self, ask: Ask, refusal: Refusal, version: int) -> None:
        if version != self._version:
            self._version = version
            self._refused.clear()
        if not _is_choosy(ask) and refusal.is_blocked and refusal.rejections.keys() <= _NOT_CANDIDATES:
            self._refused[ask.request.model_digest, ask.request.work] = ask

    def covers(self, ask: Ask, version: int) -> bool:
        """A refusal of this request for want of batch slots follows from an earlier one."""
        refused = self._refused.get((ask.request.model_digest, ask.request.work)) if version == self._version else None
        return (
            refused is not None
            and not _is_choosy(ask)
            and ask.request.required_features <= refused.request.required_features
            and ask.request.num_choices == refused.request.num_choices
            and ask.output_tokens <= refused.output_tokens
            and ask.request.num_prompt_tokens <= refused.request.num_prompt_tokens
            and ask.kv_watermark >= refused.kv_watermark
        )


def _is_choosy(ask: Ask) -> bool:
    return bool(ask.request.excluded_incarnations or ask.request.refusals)
