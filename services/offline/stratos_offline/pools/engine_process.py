"""``python -m stratos_offline.pools.engine_process``: one engine, asked by lines of JSON.

in     {ask: EngineAsk, endpoint: ..., parent: PID}, then a task a line
out    {"ready": true}, then for each task its report, or {"error": CODE, "message": ...}
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import CancelledError
from typing import IO, Any

from stratos.common.errors import StratosError
from stratos.rpc.log import configure_logging
from stratos.rpc.serving.parent import end_with_parent
from stratos_offline.blocks import BlockTask
from stratos_offline.engines.block_worker import BlockWorker
from stratos_offline.options import EngineAsk


def main() -> int:
    """Compute blocks until the driver has no more of them."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is no answer
    configure_logging("offline-engine", "console", "WARNING")
    first = json.loads(sys.stdin.readline())
    end_with_parent(first["parent"])
    try:
        with BlockWorker(EngineAsk.parse(json.dumps(first["ask"])), first["endpoint"]) as worker:
            _tell(out, {"ready": True})
            for line in sys.stdin:
                _tell(out, _answer(worker, json.loads(line)))
    except StratosError as error:
        _tell(out, _error(error))
    except CancelledError:  # the engine has ended: the driver begins another one, and the block again
        return 1
    return 0


def _answer(worker: BlockWorker, task: dict[str, Any]) -> dict[str, Any]:
    try:
        return worker.compute(BlockTask(**task)).to_dict()
    except StratosError as error:
        return _error(error)


def _error(error: StratosError) -> dict[str, Any]:
    return {"error": error.code, "message": error.message, "status": error.http_status}


def _tell(out: IO[str], value: dict[str, Any]) -> None:
    out.write(json.dumps(value) + "\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
