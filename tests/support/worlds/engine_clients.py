"""Engine clients of both kinds over the same fake engines; run as a program it is the child of a ``ProcessEngine``."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stratos.core.files.adapter_files import AdapterFiles
from stratos.core.requests.records import ChoiceState, EngineRequest, FinishReason, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import StepPlan, StepTokens
from stratos.engine.contract.results import PrefillEvent, StepResult
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner, fake_generate
from stratos.kv_transfer.registry import port_transports
from stratos.kv_transfer.settings import TransportConfig
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.engine_client.child import run_engine_process
from stratos.worker.engine_client.process import EngineChild, ProcessEngine
from stratos.worker.engine_client.thread import ThreadEngine
from tests.support.kv.port_ends import STAGING
from tests.support.servers import warm_process
from tests.support.servers.module_command import module_command
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.terms import make_terms

Start = Callable[..., Any]
MODULE = "tests.support.worlds.engine_clients"
ENGINE = "stratos.worker.engine_client.child"
"""Module of the product's own engine process."""
EXIT_TOKEN, RAISE_TOKEN, GARBAGE_TOKEN, HANG_UP_TOKEN, STRANGE_TOKEN = range(4095, 4090, -1)
"""A step that runs such a token ends the process, raises, lets the process say something that is no message, closes the
socket and goes on, or gives a result that cannot be sent."""
GARBAGE = b"\xff" * 64
ADAPTER_SHAPES = {(0, "q_proj", "A"): (1, 2), (0, "q_proj", "B"): (2, 1)}


class SuddenRunner(FakeRunner):
    """A fake runner that can take its process along, waits for files of adapters, and refuses some."""

    def launch(self, plan: StepPlan) -> Any:
        tokens = {token for row in plan.rows for token in row.token_ids}
        if EXIT_TOKEN in tokens:
            os._exit(7)
        if GARBAGE_TOKEN in tokens:
            _write_whatever_waits(int(sys.argv[1]), GARBAGE)
        if HANG_UP_TOKEN in tokens:
            socket.socket(fileno=os.dup(int(sys.argv[1]))).shutdown(socket.SHUT_RDWR)
            time.sleep(60)
        if RAISE_TOKEN in tokens:
            raise RuntimeError("no such token")
        return super().launch(plan)

    def collect(self, handle: Any) -> StepTokens:
        tokens = super().collect(handle)
        if any(STRANGE_TOKEN in row.token_ids for row in handle.plan.rows):
            tokens.tokens[0].logprobs = object()  # type: ignore[assignment]
        return tokens

    def load_adapter(self, files: AdapterFiles, *args: Any) -> None:
        while files.path.name == "comes later" and not files.path.exists():
            time.sleep(0.01)
        super().load_adapter(files, *args)
        if files.shapes != ADAPTER_SHAPES:
            raise ValueError(f"shapes came as {files.shapes}")


def _write_whatever_waits(fd: int, data: bytes) -> None:
    """Write to a socket that does not block, also when its reader is behind."""
    while True:
        select.select([], [fd], [])
        with contextlib.suppress(BlockingIOError):
            os.write(fd, data)
            return


@functools.cache
def kv_directory() -> Path:
    """Where the data ports of these clients and their tests meet."""
    folder = TemporaryDirectory(prefix="stratos-kv-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def make_fake(settings: bytes) -> ThreadEngine:
    """An engine from JSON: ``fake`` and ``scheduler`` hold the fields of the two configurations."""
    values = json.loads(settings)
    fake = values["fake"]
    if "model_path" in fake:
        fake["model_path"] = Path(fake["model_path"])
    engine = EngineCore(SuddenRunner(FakeConfig(**fake)), scheduler_config(**values["scheduler"]))
    config = TransportConfig(names=("shm",), shm_directory=Path(values["directory"]), staging=STAGING)
    return ThreadEngine(engine, transports=port_transports(config))


def make_client(
    kind: str, fake: dict[str, Any], scheduler: dict[str, Any], *, is_executed: bool = False, **options: Any
) -> EngineClient:
    """A client that is not started yet; the process of one is a fork unless it is to be ``is_executed``."""
    settings = json.dumps({"fake": fake, "scheduler": scheduler, "directory": str(kv_directory())}).encode()
    if kind == "thread":
        return make_fake(settings)
    if is_executed:
        return ProcessEngine(settings, command=module_command(MODULE), **options)
    return ProcessEngine(settings, command=(MODULE,), launch=fork, **options)


async def fork(command: Sequence[str], fds: Sequence[int]) -> EngineChild:
    """A fork of the template that has an engine's imports."""
    return warm_process.WarmChild(warm_process.begin(*command, files=(*warm_process.INHERITED, *fds), places=fds))


class Outputs:
    """Everything that the steps of a client produced."""

    def __init__(self, client: EngineClient) -> None:
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.results: list[StepResult] = []
        client.subscribe(self._on_step)

    def _on_step(self, result: StepResult) -> None:
        self.results.append(result)
        for output in result.outputs:
            tokens = self.tokens.setdefault((output.key.request_id, output.index), [])
            assert output.offset == len(tokens)
            tokens += output.token_ids

    def collect(self, pick: Callable[[StepResult], Any]) -> list[Any]:
        """What ``pick`` finds in each result, in order."""
        return [item for result in self.results for item in pick(result)]


def make_request(prompt: Any, name: str = "r", n: int = 1, **params: Any) -> EngineRequest:
    return EngineRequest(
        key=RequestKey(name, 0),
        prompt_ids=tuple(prompt),
        choices=tuple(ChoiceState(index=i) for i in range(n)),
        sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **params}),
        seed=2**64 - 1,
        terms=make_terms(tenant="t"),
    )


def make_adapter(name: str) -> AdapterFiles:
    """An adapter of one module, whose files are not read; ``name`` is one character of its digest."""
    return AdapterFiles(
        path=Path("/nowhere") / name,
        digest=name * 64,
        rank=1,
        alpha=2.0,
        use_rslora=True,
        target_modules=("q_proj",),
        num_bytes=16,
        shapes=ADAPTER_SHAPES,
    )


def expected(prompt: Any, num_tokens: int = 8, weight: int = 1) -> list[int]:
    return fake_generate(prompt, num_tokens, prefill_weight=weight, decode_weight=weight)


def ended(outputs: Outputs) -> dict[str, FinishReason]:
    return {o.key.request_id: o.finish_reason for o in outputs.collect(lambda r: r.outputs) if o.finish_reason}


def events(outputs: Outputs) -> list[PrefillEvent]:
    return outputs.collect(lambda result: result.prefill_events)


if __name__ == "__main__":
    run_engine_process(make_fake)
