"""What the tests' own processes need of their template."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path

from tests.support.servers import warm_process

SLEEPER = "import time\nprint('here', flush=True)\ntime.sleep(60)\n"


def test_it_outlives_the_thread_that_began_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('done')\n")
    for _ in range(2):
        thread = threading.Thread(target=warm_process.run, args=(str(program),))
        thread.start()
        thread.join()
        assert warm_process.run(str(program)).stdout == "done\n"


async def test_a_child_that_is_looked_at_is_waited_for_all_the_same(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SLEEPER)
    process = warm_process.begin(str(program))
    child = warm_process.WarmChild(process)
    assert process.stdout is not None
    with process.stdout as words:
        assert await asyncio.to_thread(words.readline) == "here\n"
        child.kill()
        await asyncio.to_thread(words.read)  # it has ended, and no task was told yet
    assert child.returncode is None
    child.send_signal(signal.SIGTERM)
    async with asyncio.timeout(10):
        assert await child.wait() == -signal.SIGKILL
    assert child.returncode == -signal.SIGKILL
