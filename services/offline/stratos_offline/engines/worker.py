"""A worker of the platform inside this event loop, on a port of loopback that it picks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

from stratos.common.errors import BadRequest, DependencyDown
from stratos.core.placement import WorkerRole
from stratos.rpc.serving.lifecycle import Lifecycle
from stratos.rpc.settings import SettingsT
from stratos.worker.service import WorkerProcess, worker_service
from stratos_decode_worker.settings import DecodeWorkerSettings
from stratos_offline.options import EngineOptions


@asynccontextmanager
async def running_worker(options: EngineOptions, role: WorkerRole) -> AsyncIterator[WorkerProcess]:
    """A worker that is warm; its log says why it does not start, or ends.

    Raises:
        DependencyDown: it does not start.
        CancelledError: it ended by itself, so lines would wait for it for ever.
    """
    with TemporaryDirectory(prefix="stratos-offline-") as folder:
        settings = worker_settings(options, Path(folder))
        service, stop, is_warm = worker_service(role, settings), asyncio.Event(), asyncio.Event()
        life = asyncio.create_task(Lifecycle(service, settings, stop, asyncio.Event(), is_warm.set).run())
        warm = asyncio.create_task(is_warm.wait())
        try:
            await asyncio.wait({life, warm}, return_when=asyncio.FIRST_COMPLETED)
            if not is_warm.is_set():
                raise DependencyDown("the worker of this engine did not start")
            opener = asyncio.current_task()
            assert opener is not None, "it runs in a task"
            life.add_done_callback(lambda _: stop.is_set() or opener.cancel())
            yield service
        finally:
            warm.cancel()
            stop.set()
            await life


def worker_settings(options: EngineOptions, folder: Path) -> DecodeWorkerSettings:
    """Settings of the worker as a platform on one machine has them."""
    values = {
        "worker_id": "offline",
        "engine": "fake" if options.engine == "fake" else "torch",
        "device": options.device,
        "drain_timeout_s": 1.0,
        "log_level": "WARNING",
        "step_stall_timeout_s": 60.0,
        "stall_timeout_s": 60.0,
        "fake": {"model_path": options.model_path},
        "runner": {
            "model_path": options.model_path,
            "dtype": options.dtype,
            "quantization": options.quantization,
            "kv_dtype": options.kv_cache_dtype,
            "max_model_len": options.max_model_len,
            "kv_pool_bytes": options.kv_pool_bytes,
            "num_threads": options.threads,
        },
        "adapter_cache": {"directory": str(folder / "adapters")},
        "transport": {"shm_directory": str(folder)},
    }
    return checked(DecodeWorkerSettings, values)


def checked(cls: type[SettingsT], values: dict[str, Any]) -> SettingsT:
    """Settings of a service; raises ``BadRequest`` for a value that does not fit."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        told = (f"{'.'.join(map(str, part['loc']))}: {part['msg']}" for part in error.errors())
        raise BadRequest("; ".join(told)) from error
