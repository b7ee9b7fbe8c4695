"""An engine with the settings of a running worker, in a process without tokenizer, gRPC or HTTP around it.

``scripts.bench.whole_platform`` compares a platform with it.  The worker's environment is read from the system, so the
engine has its threads, its bounds of a step and its drafts.  Only its disk tier is off: two processes would share it.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import psutil

WORKER = "stratos_decode_worker"
PREFIX = "STRATOS_DECODE_WORKER_"
OFF = {f"{PREFIX}DISK_TIER__MAX_BYTES": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests of one length, some at a time."""

    streams: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    vocab_size: int
    seed: int


def workers_of(pid: int) -> list[psutil.Process]:
    """Workers that compute, of a platform whose first process this is."""
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if any(word.endswith("_worker") for word in child.cmdline())]


class LoneEngine:
    """A child process with the engine of a worker."""

    def __init__(self, worker: psutil.Process) -> None:
        command = [sys.executable, "-m", "scripts.bench.lone_engine", "--serve"]
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**worker.environ(), **OFF})
        self.settings: dict[str, Any] = self._read()

    def measure(self, load: Load) -> dict[str, float]:
        """Tokens per second of wall time, and the CPU time of all its threads."""
        assert self._child.stdin is not None
        fields = {name: getattr(load, name) for name in Load.__slots__}
        self._child.stdin.write(json.dumps(fields) + "\n")
        self._child.stdin.flush()
        found: dict[str, float] = self._read()
        return found

    def _read(self) -> Any:
        assert self._child.stdout is not None
        if not (line := self._child.stdout.readline()):
            raise RuntimeError("the engine's process ended; its message is above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._child.communicate()


def serve() -> None:
    """Child: load the worker's engine, say its settings, and answer a line per load."""
    from stratos.rpc.settings import load_settings
    from stratos.worker.engine_client.factory import make_engine
    from stratos_decode_worker.settings import DecodeWorkerSettings

    settings = load_settings(DecodeWorkerSettings)
    engine = make_engine(settings)
    print(json.dumps(told(settings)), flush=True)
    run(engine, Load(streams=2, requests=4, prompt_tokens=128, output_tokens=64, vocab_size=4096, seed=-1))
    for line in sys.stdin:
        print(json.dumps(run(engine, Load(**json.loads(line)))), flush=True)


def told(settings: Any) -> dict[str, Any]:
    """Of a worker's settings, those that its speed follows from."""
    import torch

    return {
        "threads": torch.get_num_threads(),
        "step_time_budget_ms": settings.steps.step_time_budget_ms,
        "max_num_batched_tokens": settings.steps.max_num_batched_tokens,
        "max_num_seqs": settings.steps.max_num_seqs,
        "drafts": settings.steps.speculation.method,
        "dtype": settings.engine_runner.dtype,
        "kv_pool_bytes": settings.engine_runner.kv_pool_bytes,
        "max_model_len": settings.engine_runner.max_model_len,
    }


def run(engine: Any, load: Load) -> dict[str, float]:
    """Run the load to its end."""
    from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
    from stratos.core.requests.sampling_params import SamplingParams

    rng = random.Random(load.seed)
    params = SamplingParams(temperature=0.0, max_tokens=load.output_tokens, ignore_eos=True)
    sent = 0
    begin, cpu = time.perf_counter(), time.process_time()
    while engine.has_work or sent < load.requests:
        status = engine.status()
        while sent < load.requests and status.num_waiting + status.num_running < load.streams:
            prompt = tuple(rng.randrange(10, load.vocab_size) for _ in range(load.prompt_tokens))
            key = RequestKey(f"{load.seed}-{sent}", 0)
            engine.add(
                EngineRequest(key=key, prompt_ids=prompt, choices=(ChoiceState(index=0),), sampling=params, seed=0)
            )
            sent += 1
            status = engine.status()
        engine.step()
    wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    tokens = load.requests * load.output_tokens
    return {"output_tokens_per_s": round(tokens / wall_s, 1), "cpu_s": round(cpu_s, 2)}


if __name__ == "__main__":
    serve()
