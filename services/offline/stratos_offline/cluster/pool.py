"""Blocks as a dataset of Ray Data: a row a block, mapped by a pool of actors that grows and shrinks.

Rows are a few hundred bytes, so the driver and Ray's object store stay small however large the file is.  Ray restarts
an actor that was lost, elsewhere where its node is gone, and calls again what it had; a block whose checkpoint is there
is not computed again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext
from ray.exceptions import RayError

from stratos.common.error_codes import error_from_code
from stratos.common.errors import DependencyDown
from stratos_offline.blocks import BlockReport, BlockTask
from stratos_offline.cluster.actor import EngineActor
from stratos_offline.options import EngineAsk, JobOptions

_IN_FLIGHT = 2
"""Blocks at an actor: the one it computes and the next."""


class RayPool:
    """One pool for one run; the process has joined the cluster.

    Args:
        ask: what each engine is.
        endpoint: of all lines.
        options: how many engines.
    """

    def __init__(self, ask: EngineAsk, endpoint: str, options: JobOptions) -> None:
        self._ask = ask
        self._endpoint = endpoint
        self._options = options

    def run(self, tasks: Sequence[BlockTask]) -> Iterator[BlockReport]:
        """Compute blocks by actors."""
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = False
        options, engine = self._options, self._ask.engine
        num = len(tasks)
        pool = ActorPoolStrategy(
            min_size=min(options.min_engines, num),
            max_size=min(options.max_engines, num),
            max_tasks_in_flight_per_actor=_IN_FLIGHT,
        )
        blocks = ray.data.from_items([task.to_dict() for task in tasks], override_num_blocks=num)
        mapped = blocks.map_batches(
            EngineActor,
            batch_size=1,
            compute=pool,
            fn_constructor_kwargs={"ask": self._ask.to_json(), "endpoint": self._endpoint},
            num_cpus=engine.threads,
            num_gpus=1 if engine.device == "cuda" else None,
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(engine.threads), "RAY_USAGE_STATS_ENABLED": "0"}},
        )
        try:
            for row in mapped.iter_rows():
                yield _report(row)
        except RayError as error:
            last = str(error).strip().splitlines()[-1][:300]
            raise DependencyDown(f"the Ray cluster cannot go on: {last}") from error


def _report(row: dict[str, Any]) -> BlockReport:
    if row["error"]:
        raise error_from_code(row["error"], row["message"], http_status=int(row["status"]))
    return BlockReport(
        key=str(row["key"]),
        num_lines=int(row["num_lines"]),
        num_failed=int(row["num_failed"]),
        was_there=bool(row["was_there"]),
    )
