"""Logs of a long run stay within bounds, and the process that writes one goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stratos.cli.data.log_rotation import rotate, rotate_logs
from tests.support.waiting import eventually


def test_a_full_log_moves_on_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "gateway-0.log"
    with path.open("ab", buffering=0) as writer:
        for text in (b"first\n", b"second\n", b"third\n"):
            writer.write(text)
            assert rotate(path, 5, num_kept=2)
        writer.write(b"last\n")
    assert not rotate(path, 100, num_kept=2)
    texts = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert texts == {"gateway-0.log": "last\n", "gateway-0.log.1": "third\n", "gateway-0.log.2": "second\n"}


def test_a_log_that_is_gone_is_no_error(tmp_path: Path) -> None:
    assert not rotate(tmp_path / "none.log", 1)


async def test_every_log_of_a_run_is_looked_after(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.log").write_text("too much")
    task = asyncio.create_task(rotate_logs(tmp_path, max_bytes=4, every_s=0.01))
    await eventually(lambda: len(list(tmp_path.glob("*.log.1"))) == 2, "both moved")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
