"""``stratos up``: checks, start, wait for Ctrl-C, end. Owns the process' signals and exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace

from stratos.cli.data.credentials import load_credentials
from stratos.cli.data.folder import DataDir, RunDir
from stratos.cli.data.log_rotation import rotate_logs
from stratos.cli.local.banner import banner
from stratos.cli.local.options import UpOptions
from stratos.cli.local.platform import LocalPlatform
from stratos.cli.local.preflight import check_options, with_model_folder
from stratos.cli.local.process import StartFailed
from stratos.cli.models.references import with_held_models
from stratos.cli.models.workers import fitted, followed_models
from stratos.common.errors import StratosError
from stratos.rpc.forking.client import ForkServer

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class _StopSignals:
    """First signal: stop in order. Second: stop at once."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    is_urgent: bool = False

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for signum in SIGNALS:
            loop.add_signal_handler(signum, self._on_signal)

    def _on_signal(self) -> None:
        self.is_urgent = self.stop.is_set()
        self.stop.set()


def run_up(options: UpOptions, fork_server: ForkServer | None = None) -> int:
    """Run a platform until a signal; returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="supervisor: %(message)s")
    try:
        options, held = with_held_models(with_model_folder(options), _say)
        check_options(options)
        sizes = ""
        if options.device == "cuda":
            sizes = f"each worker: {options.gpu_share:.0%} of the GPU's memory, {_host_tier(options)}"
        elif options.engine == "torch":
            more_models = [fitted(more) for more in options.more_models]
            options, sizes = fitted(replace(options, more_models=tuple(more for more, _ in more_models)))
            sizes = "\n".join([sizes, *(text for _, text in more_models)])
        data = DataDir(options.data_dir)
        data.prepare()
        run = data.new_run()
    except StratosError as error:
        return _fail(error.message)
    except OSError as error:
        return _fail(f"{error}; free some space or choose another --data-dir")
    with ExitStack() as stack, asyncio.Runner() as runner:
        for model in held:
            stack.enter_context(closing(model))
        return runner.run(_run(options, data, run, sizes, fork_server))


def _host_tier(options: UpOptions) -> str:
    if options.kv_host_gib:
        return f"{options.kv_host_gib} GiB of host memory for evicted KV"
    if not options.host_share:
        return "no host memory for evicted KV"
    return f"up to {options.host_share:.1%} of the host's free memory for evicted KV"


async def _run(options: UpOptions, data: DataDir, run: RunDir, sizes: str, fork_server: ForkServer | None) -> int:
    signals = _StopSignals()
    signals.install()
    began = time.monotonic()
    _say(f"starting StratosServe with {options.model_path} (data in {data.path})")
    if sizes:
        _say(sizes)
    exit_code = 1
    try:
        platform = LocalPlatform(
            options,
            data=data,
            run=run,
            credentials=load_credentials(data),
            report=_report,
            fork_server=fork_server,
        )
        try:
            exit_code = await _serve(platform, options, data, run, signals, began)
        finally:
            await platform.stop(is_urgent=lambda: signals.is_urgent)
    except StartFailed as error:
        _explain(error)
    except StratosError as error:
        _fail(error.message)
    except OSError as error:
        _fail(f"{error}; the data directory is {data.path}")
    finally:
        run.remove(keep_logs=options.keep_logs or exit_code != 0)
    _say("stopped")
    return exit_code


async def _serve(
    platform: LocalPlatform, options: UpOptions, data: DataDir, run: RunDir, signals: _StopSignals, began: float
) -> int:
    start = asyncio.create_task(platform.start(), name="start")
    stop = asyncio.create_task(signals.stop.wait(), name="stop")
    await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        _say("stopped before everything had started")
        return 0
    facts = start.result()
    _say(f"ready in {time.monotonic() - began:.1f} s")
    _say(banner(facts, options))
    rotation = asyncio.create_task(rotate_logs(run.logs_path), name="logs")
    async with followed_models(platform, options, facts, data, _report):
        await stop
    rotation.cancel()
    _say("stopping (Ctrl-C again ends open streams at once)")
    return 0


def _explain(error: StartFailed) -> None:
    _fail(str(error))
    if error.log_tail:
        _say(f"the end of its log (all of it: {error.log_path}):")
        _say("\n".join(f"  | {line}" for line in error.log_tail.splitlines()))


def _report(line: str) -> None:
    _say(f"  {line}")


def _fail(message: str) -> int:
    _say(f"error: {message}")
    return 1


def _say(text: str) -> None:
    """Tell who reads the output; nothing stops where it takes no more: its disk is full, its terminal or pipe gone."""
    with suppress(OSError):
        print(text, flush=True)
