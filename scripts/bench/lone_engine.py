"""An engine with the settings of a platform's worker, in a process without tokenizer, gRPC or HTTP around it.

``scripts.bench.whole_platform`` compares a platform with it.  Its environment is made by what makes that of the workers
of ``stratos up``, so the engine has their threads, bounds of a step and drafts.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratos.cli.local.options import UpOptions
from stratos.cli.local.topology import Endpoints, RunPaths, service_spec, worker_settings, worker_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests of one length, some at a time."""

    streams: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    vocab_size: int
    seed: int


def worker_environment(options: UpOptions, folder: Path) -> dict[str, str]:
    """What `stratos up` with these options adds to the environment of its first decode worker."""
    paths = RunPaths(workers_folder=folder, shm_path=folder, work_path=folder, kv_path=folder)
    settings = worker_settings("decode-0", options, Endpoints(), paths) | worker_sizes(options)
    spec = service_spec(
        "decode-0", "decode_worker", settings, address_file=folder / "address", options=options, role="decode"
    )
    return dict(spec.env)


class LoneEngine:
    """A child process with the engine of a worker."""

    def __init__(self, options: UpOptions, folder: Path) -> None:
        command = [sys.executable, "-m", "scripts.bench.lone_engine", "--serve"]
        env, pipe = {**os.environ, **worker_environment(options, folder)}, subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env)
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
