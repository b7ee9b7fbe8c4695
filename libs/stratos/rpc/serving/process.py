"""Entry points of the lifecycle: ``serve`` for a process, ``serve_async`` inside a running loop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

import uvloop

from stratos.common.errors import StratosError
from stratos.rpc.binding import StartError
from stratos.rpc.log import configure_logging
from stratos.rpc.log_thread import log_by_thread
from stratos.rpc.serving.heap import settle_heap
from stratos.rpc.serving.lifecycle import Lifecycle
from stratos.rpc.serving.parent import PARENT_PID_ENV, end_with_parent
from stratos.rpc.serving.service import Service
from stratos.rpc.settings import ServiceSettings

_log = logging.getLogger(__name__)


def serve(factory: Callable[[], Service], settings: ServiceSettings) -> int:
    """Run a service until a signal or a fault; returns the process' exit code, for ``sys.exit``.

    Args:
        factory: makes the service, inside the event loop.
        settings: of the service.
    """
    configure_logging(_service_word(settings), settings.log_format, settings.log_level)
    if parent_pid := os.environ.get(PARENT_PID_ENV):
        end_with_parent(int(parent_pid))
    with log_by_thread():
        return uvloop.run(_run_with_signals(factory, settings))


async def serve_async(
    service: Service,
    settings: ServiceSettings,
    *,
    stop: asyncio.Event | None = None,
    force: asyncio.Event | None = None,
) -> int:
    """The same inside a running loop, without signal handlers and log set-up.

    Setting ``stop`` is the first signal, setting ``force`` the second one.
    """
    return await Lifecycle(service, settings, stop or asyncio.Event(), force or asyncio.Event()).run()


async def _run_with_signals(factory: Callable[[], Service], settings: ServiceSettings) -> int:
    loop, stop, force = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    has_signal = False

    def on_signal() -> None:
        nonlocal has_signal
        if has_signal:  # a stop that the service asked for itself is no signal: one that follows must not cut it short
            _log.warning("second signal: stopping without drain; a third one kills")
            force.set()
            for number in numbers:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)
        has_signal = True
        stop.set()

    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        service = factory()
    except (StartError, StratosError) as error:
        _log.error("%s", error)
        return 1
    return await Lifecycle(service, settings, stop, force, settle_heap).run()


def _service_word(settings: ServiceSettings) -> str:
    prefix = settings.env_prefix
    return prefix.removeprefix("STRATOS_").strip("_").lower().replace("_", "-") or "service"
