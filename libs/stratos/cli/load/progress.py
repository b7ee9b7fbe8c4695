"""A run while it goes on: one line on stderr, rewritten on a terminal and repeated now and then elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

from stratos.cli.load.client.run import LoadProgress

TERMINAL_INTERVAL_S = 0.5
FILE_INTERVAL_S = 10.0


@asynccontextmanager
async def shown_progress(name: str, stream: TextIO = sys.stderr) -> AsyncIterator[LoadProgress]:
    """Show counts of a run while the block goes on.

    Args:
        name: of the run.
        stream: to write to.
    """
    progress = LoadProgress()
    task = asyncio.create_task(_show(name, progress, stream))
    try:
        yield progress
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if stream.isatty():
            stream.write("\r\033[K")


async def _show(name: str, progress: LoadProgress, stream: TextIO) -> None:
    began_s, is_terminal = asyncio.get_running_loop().time(), stream.isatty()
    while True:
        await asyncio.sleep(TERMINAL_INTERVAL_S if is_terminal else FILE_INTERVAL_S)
        line = progress_line(name, progress, asyncio.get_running_loop().time() - began_s)
        stream.write(f"\r\033[K{line}" if is_terminal else f"{line}\n")
        stream.flush()


def progress_line(name: str, progress: LoadProgress, elapsed_s: float) -> str:
    """Counts so far."""
    num_open = progress.num_sent - progress.num_completed - progress.num_failed
    rate = progress.num_output_tokens / elapsed_s if elapsed_s else 0.0
    return (
        f"{name}  {elapsed_s:.0f} s  {progress.num_sent} sent, {num_open} open, {progress.num_completed} done, "
        f"{progress.num_failed} failed, {rate:.1f} tokens/s"
    )
