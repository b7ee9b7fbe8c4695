"""Files of the shm transport whose owners die."""

import asyncio
import signal
import subprocess
import sys

from stratos.kv_transfer.settings import StagingConfig
from stratos.kv_transfer.shm import shm_ends

CONFIG = StagingConfig(slot_bytes=8192, slots_per_pair=2)
OWNER = """
import asyncio, sys
from pathlib import Path
from stratos.kv_transfer.settings import StagingConfig
from stratos.kv_transfer.shm import shm_ends
async def main():
    ends = shm_ends(StagingConfig(slot_bytes=8192, slots_per_pair=2), Path(sys.argv[1]))
    ring = await ends.open_ring("inc-p>inc-x#1")
    print(ring.address, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_leftovers_of_dead_receivers_are_removed_and_those_of_living_ones_are_not(tmp_path):
    directory = tmp_path / "staging"

    def start():
        owner = subprocess.Popen([sys.executable, "-c", OWNER, str(directory)], stdout=subprocess.PIPE, text=True)
        return owner, owner.stdout.readline().strip()

    (dead, dead_name), (living, living_name) = [await asyncio.to_thread(start) for _ in range(2)]
    try:
        dead.send_signal(signal.SIGKILL)
        assert dead.wait() == -signal.SIGKILL
        (directory / "something-else").write_text("not ours")
        assert {path.name for path in directory.iterdir()} == {dead_name, living_name, "something-else"}
        shm_ends(CONFIG, directory)
        assert {path.name for path in directory.iterdir()} == {living_name, "something-else"}
    finally:
        for owner in (dead, living):
            owner.kill()
            owner.wait()
            owner.stdout.close()
