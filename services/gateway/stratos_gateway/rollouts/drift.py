"""Measures how far a revision's answers are from the old one's: log probabilities of a text that is always the same.

    roll-out begins ──▶ both revisions are asked, as a request of the platform's own ──▶ the record says what was found
                                                                        and weights are written, or it goes back ◀──┘

Every gateway may measure, and the first one to write it is believed: the figures are of weights, not of a moment.  No
client is on the revision before (``judge``).  A revision that cannot be asked is asked again at the next look.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from redis.exceptions import RedisError

from stratos.common.errors import BadRequest, DependencyDown, Internal, StratosError
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.tenant import PLATFORM_TENANT, Tenant
from stratos.store.counters.guard import StoreId, known
from stratos.store.models.rollout_forms import rollout_to_json
from stratos.store.models.rollout_record import Drift, RolloutRecord
from stratos.store.records.record import Kind
from stratos.store.records.record_store import RecordStore
from stratos.store.records.writer import RecordWriter
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.generation.fanout import Fanout
from stratos_gateway.generation.fleet_access import FleetAccess
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.rollouts.controller import read_rollout, replace_seen

_log = logging.getLogger(__name__)
PINNED_TEXT = """The ferry leaves at 7:45 on weekdays, and at 9:10 on Sundays; bring 12 euros and a coat.
def mean(values: list[float]) -> float:
    return sum(values) / len(values)
{"city": "Zürich", "people": 447082, "rivers": ["Limmat", "Sihl"]}
Question: what is the capital of Portugal? Answer: Lisbon. 日本の首都は東京です。 Столица России — Москва.
The quick brown fox jumps over the lazy dog, because the dog was asleep and did not mind. 3 + 4 * 5 = 23.
"""
MAX_TOKENS = 256
"""Of the pinned text: one chunk of a prompt."""
LEAST_TOKENS = 2
"""The first one has no probability."""
ASK_S = 60.0
"""Longest time of both requests together."""
MOST_NATS = 100.0
"""Differences are no larger: what is no number, such as that of a probability of 0, counts as so much. Where only the
new revision says such a thing, the mean is as much: one in hundreds of tokens must not be diluted."""
DRIFT_TENANT = Tenant(name=PLATFORM_TENANT, cache_salt=b"stratos-drift")
Ask = Callable[[ServedModel, Sequence[int]], Awaitable[Sequence[float]]]
"""Log probability of each token but the first, as workers of a model compute it; raises ``StratosError``."""


class DriftWatch:
    """Belongs to the event loop.

    Args:
        records: where roll-outs are stored.
        models: served by this gateway.
        store_id: of the store that takes what was found.
        poll_s: between two looks.
    """

    def __init__(self, records: RecordStore, models: ModelSet, store_id: StoreId, poll_s: float) -> None:
        self._records = records
        self._models = models
        self._store_id = store_id
        self._poll_s = poll_s

    async def run(self, rollouts: Callable[[], Iterable[RolloutRecord]], ask: Ask) -> None:
        """Root task: measure for roll-outs that lack it, as this gateway follows them."""
        looks = dict[str, asyncio.Task[None]]()
        async with asyncio.TaskGroup() as tasks:
            while True:
                looks = {model: look for model, look in looks.items() if not look.done()}
                for model in {found.model for found in rollouts() if found.lacks_drift} - looks.keys():
                    looks[model] = tasks.create_task(self._try(model, ask), name=f"drift of {model}")
                await asyncio.sleep(self._poll_s)

    async def _try(self, model: str, ask: Ask) -> None:
        try:
            await self.look(model, ask)
        except (StratosError, RedisError, TimeoutError) as error:
            _log.info("the drift of %s is measured later: %s", model, error or "it takes too long")
        except Exception:  # a task's edge: what one roll-out does ends no gateway
            _log.exception("the drift of %s could not be measured", model)

    async def look(self, model: str, ask: Ask) -> bool:
        """Measure for a model's roll-out; false where there is nothing to measure, or another gateway was first.

        Raises:
            StratosError: a revision is not served here or cannot be asked, or the store does not answer.
            TimeoutError: they take too long.
        """
        writer = RecordWriter(self._records, actor="gateway", store_id=known(self._store_id))
        record, rollout = await read_rollout(writer, model)
        if rollout is None or not rollout.lacks_drift:
            return False
        old, new = self._models.of_digest(rollout.old), self._models.of_digest(rollout.new)
        if old is None or new is None:
            lacking = rollout.old if old is None else rollout.new
            raise DependencyDown(f"this gateway does not serve the revision {lacking[:12]}")
        async with asyncio.timeout(ASK_S):
            drift = await _measured(old, new, ask)
        value = rollout_to_json(replace(rollout, drift=drift))
        return await replace_seen(writer, Kind.ROLLOUT, model, "rollout.drift", record, value)


def pinned_ids(old: ServedModel, new: ServedModel) -> Sequence[int]:
    """Tokens of the pinned text, the same ones for both revisions.

    Raises:
        BadRequest: they have none in common: other tokenizers, or a model that only embeds.
    """
    if not (old.base.can_generate and new.base.can_generate):
        raise BadRequest("drift needs log probabilities: this model only embeds", param="gates")
    found = [model.tokenizer.encode_plain(PINNED_TEXT) for model in (old, new)]
    if found[0] != found[1]:
        raise BadRequest("drift compares token by token: the tokenizers of both revisions differ", param="gates")
    ids = found[0][: min(MAX_TOKENS, old.max_input_tokens, new.max_input_tokens)]
    if len(ids) < LEAST_TOKENS:
        raise BadRequest("drift needs a context of some tokens: this one is too short", param="gates")
    return ids


async def prompt_logprobs(fleet: FleetAccess, model: ServedModel, ids: Sequence[int]) -> Sequence[float]:
    """Log probability of each token of a prompt but the first: a request as any other, but billed to no tenant.

    Raises:
        StratosError: no worker of the model answers.
    """
    spec = GenerationSpec(
        terms=DRIFT_TENANT.terms(),
        model_digest=model.base.digest,
        model=model.base.name,
        prompt_ids=tuple(ids),
        sampling=SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, num_prompt_logprobs=0),
        seed=0,
        can_be_convicted=False,
    )
    async with Fanout([spec], 1, ((), False), model.tokenizer, fleet) as fanout:
        await fanout.finish()
        return [position.sampled.logprob for position in fanout.generations[0].transcript.prompt_logprobs]


async def _measured(old: ServedModel, new: ServedModel, ask: Ask) -> Drift:
    ids = pinned_ids(old, new)
    before, after = await ask(old, ids), await ask(new, ids)
    if not len(before) == len(after) == len(ids) - 1:
        raise Internal(f"workers gave {len(before)} and {len(after)} log probabilities of {len(ids)} tokens")
    pairs = list(zip(before, after, strict=True))
    found = [_nats_off(one, other) for one, other in pairs]
    is_lost = any(math.isfinite(one) and not math.isfinite(other) for one, other in pairs)
    return Drift(mean=MOST_NATS if is_lost else sum(found) / len(found), largest=max(found), num_tokens=len(found))


def _nats_off(one: float, other: float) -> float:
    off = 0.0 if one == other else abs(one - other)
    return off if off < MOST_NATS else MOST_NATS  # what is no number is not below it
