"""The async face of an engine: the only thing servicers speak to.

``ThreadEngine`` drives the engine in a thread of this process, ``ProcessEngine`` in a process of its own.  A method has
the name, arguments, result and errors of ``EngineCore``'s; both clients implement only how a call gets there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from stratos.core.cache_changes import CacheChanges
from stratos.core.files.adapter_files import AdapterFiles
from stratos.core.requests.embedding import EmbedRequest
from stratos.core.requests.grammar import GrammarSpec
from stratos.core.requests.records import EngineRequest, PrefillJob, RequestKey
from stratos.core.requests.terms import RequestTerms
from stratos.engine.contract.results import BlockReservation, EngineStatus, StepResult, WeightCheck
from stratos.engine.contract.runner import RunnerInfo
from stratos.kv_transfer.port.base import DataPort

STOPPED = "the engine of this worker has stopped"
MAY_TAKE_LONG = frozenset(
    {"load_adapter", "load_blocks", "prepare_grammar", "cache_changes", "check_weights", "sleep", "wake"}
)
"""Methods that may take long without anything being wrong."""
BESIDE_STEPS = MAY_TAKE_LONG | {"disk_worth_s", "match", "pin_adapter"}
"""Methods that do not wait for the step loop."""
StepCallback = Callable[[StepResult], None]


class EngineClient(ABC):
    """An engine somewhere else. All methods are safe to call from the event loop that called ``start``.

    Calls take effect in the order in which they are made, except those of ``BESIDE_STEPS``. Once the engine has
    stopped they raise ``WorkerLost``.
    """

    info: RunnerInfo
    has_device_pages: bool
    """Payloads of KV can stay in a device's memory."""
    data_port: DataPort
    """Moves KV between the engine's pages and other workers, where the engine is. There from ``start`` on."""

    def __init__(self) -> None:
        self._callbacks: tuple[StepCallback, ...] = ()

    @abstractmethod
    async def start(self) -> None:
        """Begin stepping; may make the engine first, and then raises what making it raises."""

    @abstractmethod
    async def close(self) -> None:
        """Stop stepping; open requests just end."""

    @abstractmethod
    def status(self) -> EngineStatus:
        """Snapshot, at most some 50 ms old; as old as the last step when the engine hangs. Any thread."""

    @abstractmethod
    async def wait_failed(self) -> None:
        """Wait until the step loop has died, then raise what killed it."""

    def subscribe(self, callback: StepCallback) -> None:
        """Call ``callback`` in the event loop after each step that produced something, in order."""
        self._callbacks += (callback,)

    def unsubscribe(self, callback: StepCallback) -> None:
        """Call it no more, from the next step on."""
        self._callbacks = tuple(other for other in self._callbacks if other != callback)

    def _publish(self, result: StepResult) -> None:
        for callback in self._callbacks:
            callback(result)

    # -- the engine's methods ----------------------------------------------------------------------

    @abstractmethod
    async def _call(self, method: str, *arguments: Any) -> Any:
        """Call the engine's method of this name and return its result."""

    @abstractmethod
    def _post(self, method: str, *arguments: Any) -> None:
        """Like ``_call``, without waiting for the result."""

    async def add(self, request: EngineRequest) -> None:
        await self._call("add", request)

    async def add_embedding(self, request: EmbedRequest) -> None:
        await self._call("add_embedding", request)

    async def prepare_grammar(self, spec: GrammarSpec) -> None:
        await self._call("prepare_grammar", spec)

    def abort(self, key: RequestKey, choice_indexes: tuple[int, ...] = ()) -> None:
        self._post("abort", key, choice_indexes)

    async def match(self, prompt_ids: tuple[int, ...], adapter_digest: str, cache_salt: bytes) -> int:
        return int(await self._call("match", prompt_ids, adapter_digest, cache_salt))

    async def disk_worth_s(self, token_ids: tuple[int, ...], terms: RequestTerms) -> float:
        return float(await self._call("disk_worth_s", token_ids, terms))

    async def load_blocks(self, token_ids: tuple[int, ...], terms: RequestTerms) -> int:
        return int(await self._call("load_blocks", token_ids, terms))

    async def reserve(self, request: EngineRequest) -> BlockReservation | None:
        reservation: BlockReservation | None = await self._call("reserve", request)
        return reservation

    async def commit(self, key: RequestKey) -> None:
        await self._call("commit", key)

    async def commit_part(self, key: RequestKey, num_tokens: int) -> bool:
        return bool(await self._call("commit_part", key, num_tokens))

    async def add_prefill(self, job: PrefillJob) -> None:
        await self._call("add_prefill", job)

    async def grant(self, leg: str) -> None:
        await self._call("grant", leg)

    async def park(self, leg: str) -> None:
        await self._call("park", leg)

    async def release_prefill(self, leg: str) -> None:
        await self._call("release_prefill", leg)

    async def forget_blocks(self, hashes: list[bytes]) -> int:
        return int(await self._call("forget_blocks", hashes))

    async def forget_tenant(self, tenant: str) -> int:
        return int(await self._call("forget_tenant", tenant))

    def distrust(self) -> None:
        self._post("distrust")

    async def cache_changes(self, after: int | None) -> CacheChanges:
        changes: CacheChanges = await self._call("cache_changes", after)
        return changes

    async def probe(self) -> bytes:
        digest: bytes = await self._call("probe")
        return digest

    async def check_weights(self, max_bytes: int) -> WeightCheck:
        check: WeightCheck = await self._call("check_weights", max_bytes)
        return check

    async def load_adapter(self, files: AdapterFiles) -> None:
        await self._call("load_adapter", files)

    async def pin_adapter(self, digest: str) -> bool:
        return bool(await self._call("pin_adapter", digest))

    async def unpin_adapter(self, digest: str) -> None:
        await self._call("unpin_adapter", digest)

    async def sleep(self) -> int:
        return int(await self._call("sleep"))

    async def wake(self) -> None:
        await self._call("wake")
