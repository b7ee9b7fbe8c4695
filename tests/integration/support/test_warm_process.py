"""What the tests' own processes need of their template."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path

from tests.support.servers import warm_process
from tests.support.waiting import wait_until

SLEEPER = "import time\ntime.sleep(60)\n"


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
    assert process.stdout is not None
    with process.stdout:
        child = warm_process.WarmChild(process)
        await asyncio.sleep(0)  # the child's task waits for the news
        child.kill()
        wait_until(lambda: process.has_ended, "the news of its end")  # the event loop stands: no task takes them
        assert child.returncode is None
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == -signal.SIGKILL
    assert child.returncode == -signal.SIGKILL
