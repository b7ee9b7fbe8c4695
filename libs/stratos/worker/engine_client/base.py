"""The async face of an engine: the only thing servicers speak to.

``ThreadEngine`` drives the engine in a thread of this process, ``ProcessEngine`` in a process of its own.  Methods
have the names, arguments and errors of ``stratos.engine.contract.results.Engine``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from stratos.core.files.adapter_files import AdapterFiles
from stratos.core.requests.embedding import EmbedRequest
from stratos.core.requests.grammar import GrammarSpec
from stratos.core.requests.records import EngineRequest, PrefillJob, RequestKey
from stratos.engine.contract.results import EngineStatus, Reservation, StepResult
from stratos.engine.contract.runner import RunnerInfo

STOPPED = "the engine of this worker has stopped"
StepCallback = Callable[[StepResult], None]


class EngineClient(ABC):
    """An engine somewhere else. All methods are safe to call from the event loop that called ``start``.

    Calls take effect in the order in which they are made. Once the engine has stopped they raise ``WorkerLost``.
    """

    info: RunnerInfo

    @abstractmethod
    async def start(self) -> None:
        """Begin stepping; may make the engine first, and then raises what making it raises."""

    @abstractmethod
    async def close(self) -> None:
        """Stop stepping; open requests just end."""

    @abstractmethod
    def subscribe(self, callback: StepCallback) -> None:
        """Call ``callback`` in the event loop after each step that produced something, in order."""

    @abstractmethod
    def status(self) -> EngineStatus:
        """Snapshot, at most some 50 ms old; as old as the last step when the engine hangs. Any thread."""

    @abstractmethod
    async def wait_failed(self) -> None:
        """Wait until the step loop has died, then raise what killed it."""

    @abstractmethod
    async def add(self, request: EngineRequest) -> None:
        """See ``Engine.add``."""

    @abstractmethod
    async def add_embedding(self, request: EmbedRequest) -> None:
        """See ``Engine.add_embedding``."""

    @abstractmethod
    async def prepare_grammar(self, spec: GrammarSpec) -> None:
        """See ``Engine.prepare_grammar``; runs outside of the step loop."""

    @abstractmethod
    def abort(self, key: RequestKey, choice_indexes: tuple[int, ...] = ()) -> None:
        """See ``Engine.abort``; posted, does not wait."""

    @abstractmethod
    async def match(self, prompt_ids: tuple[int, ...], adapter_digest: str, cache_salt: bytes) -> int:
        """See ``Engine.match``."""

    @abstractmethod
    async def reserve(self, request: EngineRequest) -> Reservation | None:
        """See ``Engine.reserve``."""

    @abstractmethod
    async def scatter(
        self, key: RequestKey, token_begin: int, token_end: int, layer_begin: int, layer_end: int, payload: memoryview
    ) -> None:
        """See ``Engine.scatter``; runs outside of the step loop."""

    @abstractmethod
    async def commit(self, key: RequestKey) -> None:
        """See ``Engine.commit``."""

    @abstractmethod
    async def add_prefill(self, job: PrefillJob) -> None:
        """See ``Engine.add_prefill``."""

    @abstractmethod
    async def grant(self, leg: str) -> None:
        """See ``Engine.grant``."""

    @abstractmethod
    async def gather(self, leg: str, token_begin: int, token_end: int, layer_begin: int, layer_end: int) -> memoryview:
        """See ``Engine.gather``; runs outside of the step loop."""

    @abstractmethod
    async def release_prefill(self, leg: str) -> None:
        """See ``Engine.release_prefill``."""

    @abstractmethod
    async def forget_blocks(self, hashes: list[bytes]) -> int:
        """See ``Engine.forget_blocks``."""

    @abstractmethod
    async def load_adapter(self, files: AdapterFiles) -> None:
        """See ``Engine.load_adapter``; runs outside of the step loop."""

    @abstractmethod
    async def pin_adapter(self, digest: str) -> bool:
        """See ``Engine.pin_adapter``."""

    @abstractmethod
    async def unpin_adapter(self, digest: str) -> None:
        """See ``Engine.unpin_adapter``."""
