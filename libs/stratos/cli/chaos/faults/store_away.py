"""The object store is gone: the folder that a local platform has for it is replaced by a file for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stratos.cli.chaos.faults.contract import NOTHING, NoEffect, Proof, Strike
from stratos.cli.chaos.faults.waking import undone_in_the_end

_BRING_BACK = """
away, path = sys.argv[1:]
if os.path.isdir(away):
    if os.path.isfile(path):
        os.unlink(path)
    os.rename(away, path)
"""


async def gone(strike: Strike) -> Proof:
    """Nothing can be read from the object store, and nothing be written to it."""
    path = Path("/nonexistent/object-store") if strike.target == NOTHING else strike.place.store_path()
    if not path.is_dir():
        raise NoEffect(f"there is no folder {path} to take away")
    away, num_objects = path.with_name(f"{path.name}.away"), len(_names(path))
    by_hand = f"the object store lies in {away}; move it back to {path}"
    with undone_in_the_end(_BRING_BACK, away, path, by_hand=by_hand):
        path.rename(away)
        path.touch()
        strike.in_effect.set()
        await asyncio.sleep(strike.lasting_s)
        if path.is_dir():
            raise NoEffect(f"{path} was there again before its time")
    if len(_names(path)) < num_objects:
        raise NoEffect(f"{path} did not come back whole")
    return {"store": str(path), "gone_s": strike.lasting_s, "objects": num_objects}


def _names(path: Path) -> list[str]:
    return [str(one) for one in path.rglob("*")]
