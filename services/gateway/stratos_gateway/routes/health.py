"""Deep health: a one-token inference through the whole platform, cached, never billed.

"full" is not "broken": a platform that refuses the probe because it has too much to do, is healthy.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass

from stratos.common.clock import Clock
from stratos.common.errors import Overloaded, QueueTimeout, RateLimited, StratosError
from stratos.core.requests.embedding import EmbedCall, PoolingKind
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.tenant import PLATFORM_TENANT, Tenant
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.embedding.client import EmbeddingClient
from stratos_gateway.embedding.run import embed_all
from stratos_gateway.generation.fanout import Fanout
from stratos_gateway.generation.fleet_access import FleetAccess
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.routes.settings import HealthConfig

HEALTH_TENANT = Tenant(name=PLATFORM_TENANT, cache_salt=b"stratos-health")
_PROBE_TEXT = "a"


class HealthState(enum.StrEnum):
    """Result of the last probe."""

    OK = "ok"
    FULL = "full"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class HealthReport:
    """A probe's outcome."""

    state: HealthState
    reason: str
    checked_s: float
    duration_s: float


class DeepHealth:
    """Runs at most one probe per interval; callers in between share its outcome.

    Args:
        models: of which the first one is asked.
        fleet: whom to ask.
        embeddings: calls workers, for a model that only embeds.
        config: how often, and for how long.
    """

    def __init__(
        self,
        models: ModelSet,
        fleet: FleetAccess,
        embeddings: EmbeddingClient,
        config: HealthConfig,
    ) -> None:
        self._models = models
        self._embeddings = embeddings
        self._fleet = fleet
        self._clock: Clock = fleet.clock
        self._interval_s = config.interval_s
        self._timeout_s = config.timeout_s
        self._report: HealthReport | None = None
        self._lock = asyncio.Lock()

    async def report(self) -> HealthReport:
        """The last outcome if it is fresh, else that of a new probe."""
        async with self._lock:
            if self._report is None or self._clock.now() - self._report.checked_s >= self._interval_s:
                self._report = await self._probe()
            return self._report

    async def _probe(self) -> HealthReport:
        started_s = self._clock.now()
        state, reason = HealthState.OK, ""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._infer()
        except TimeoutError:
            state, reason = HealthState.BROKEN, f"no token within {self._timeout_s:g} s"
        except (Overloaded, RateLimited) as error:
            state, reason = HealthState.FULL, error.message
        except QueueTimeout as error:
            state, reason = HealthState.BROKEN, error.message
        except StratosError as error:
            state, reason = HealthState.BROKEN, error.code
        now_s = self._clock.now()
        return HealthReport(state, reason, now_s, now_s - started_s)

    async def _infer(self) -> None:
        model = self._models.home
        base, prompt_ids = model.base, tuple(model.tokenizer.encode(_PROBE_TEXT))
        if not base.can_generate:
            call = EmbedCall(
                terms=HEALTH_TENANT.terms(),
                model_digest=base.digest,
                inputs=(prompt_ids,),
                pooling=PoolingKind.LAST,
                normalizes=True,
                num_dimensions=None,
            )
            await embed_all(call, self._fleet, self._embeddings, self._timeout_s)
            return
        spec = GenerationSpec(
            terms=HEALTH_TENANT.terms(),
            model_digest=base.digest,
            prompt_ids=prompt_ids,
            sampling=SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True),
            seed=0,
            can_be_convicted=False,
        )
        async with Fanout([spec], 1, ((), False), model.tokenizer, self._fleet) as fanout:
            await fanout.finish()
