"""Workers of ``stratos up`` for the models that records name: sizes, processes, and when they are started."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from stratos.cli.data.digests import digest_of
from stratos.cli.data.folder import DataDir
from stratos.cli.data.platform_facts import PlatformFacts
from stratos.cli.data.speculative_config import parse_speculative_config, speculative_text
from stratos.cli.local.options import UpOptions
from stratos.cli.local.platform import LocalPlatform
from stratos.cli.local.preflight import check_checkpoint
from stratos.cli.models.pools import ModelPools
from stratos.cli.models.references import held_model
from stratos.common.background import end_tasks
from stratos.common.clock import SystemClock
from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.handed_digest import digest_in
from stratos.core.fleet import Fleet
from stratos.engine.settings import DiskTierConfig
from stratos.engine.sizing.machine import read_machine
from stratos.rpc.clients.router import RouterClient
from stratos.selfcheck.machine.sizing import WorkerAsk, WorkerEngineSettings, plan_workers
from stratos.store.models.model_record import ModelRecord
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record_store import RecordStore
from stratos.store.records.settings import SnapshotConfig
from stratos.store.redis import open_redis
from stratos.store.registry.catalogue import is_reference
from stratos.store.settings import ObjectStoreConfig


def fitted(options: UpOptions) -> tuple[UpOptions, str]:
    """The options with sizes for every worker, and the text that explains them.

    Those of a platform that are fitted again for another model get the type that was asked for, not that of the first.
    """
    dtype = options.asked_dtype or options.dtype
    ask = WorkerAsk(
        model_path=options.model_path,
        num_workers=options.most_workers,
        dtype=dtype,
        quantization=options.quantization,
        kv_dtype=options.kv_cache_dtype,
        max_model_len=options.max_model_len,
        kv_pool_bytes=options.kv_pool_bytes,
        host_pool_bytes=options.kv_host_gib << 30 or (DiskTierConfig().staging_bytes if options.kv_disk_gib else 0),
    )
    drafts = parse_speculative_config(options.speculative_config)
    flags = {f"{WorkerEngineSettings.env_prefix}{name}": value for name, value in drafts.items()}
    plan, text = plan_workers(ask, read_machine(), flags | os.environ)
    sizes = {"dtype": plan.dtype, "kv_pool_bytes": plan.kv_pool_bytes, "max_model_len": plan.max_model_len}
    return replace(options, **sizes, asked_dtype=dtype), text  # type: ignore[arg-type]


class LocalModelWorkers:
    """Starts and ends workers of added models on this machine.

    Args:
        platform: whose processes they become.
        options: of the platform.
        facts: its addresses.
        data: its data directory.
    """

    def __init__(self, platform: LocalPlatform, options: UpOptions, facts: PlatformFacts, data: DataDir) -> None:
        self._platform = platform
        self._options = options
        self._facts = facts
        self._data = data
        self._starts = asyncio.Lock()
        self._running: list[set[str]] = []
        """Names of the workers of each added model."""

    async def start_model(self, record: ModelRecord) -> Sequence[str]:
        """Start as many workers as each model has, for one that a record names; returns their names.

        One model after the other: what it may take of the machine is known once the one before has taken its part.

        Raises:
            StratosError: its folder is another model, or the machine has no room for it.
        """
        if is_reference(record.source):  # its workers hold it for themselves
            store = ObjectStoreConfig(url=self._facts.object_store_url, s3_endpoint_url=self._facts.s3_endpoint_url)
            with closing(await held_model(record.source, store, self._data)) as held:
                return await self._start_from(held.path, record, held.handed_digest)
        path = Path(record.source)
        return await self._start_from(path, record, await digest_of(path, self._data.digests_file))

    async def _start_from(self, path: Path, record: ModelRecord, handed: str) -> Sequence[str]:
        if digest_in(handed) != record.digest:
            raise InvalidCheckpoint(f"{record.source} holds another model than its record says; add it again")
        async with self._starts:
            return await self._start(path, record, handed)

    async def _start(self, path: Path, record: ModelRecord, handed: str) -> Sequence[str]:
        most = self._options
        num_others = most.num_workers + len(self._running) * most.num_own_workers
        drafts = most.speculative_config if record.speculation is None else speculative_text(asdict(record.speculation))
        options = replace(
            most, model_path=path, source=record.source if is_reference(record.source) else "", name=record.name,
            more_models=(), quantization=record.quantization, speculative_config=drafts,
            max_model_len=record.max_model_len, kv_pool_bytes=0, num_other_workers=num_others,
        )  # fmt: skip
        if options.engine == "torch":
            await asyncio.to_thread(check_checkpoint, path)
            if options.device == "cpu":
                options, _ = await asyncio.to_thread(fitted, options)
        label = f"{re.sub('[^A-Za-z0-9._]', '_', record.name)}-{record.digest[:8]}"
        names = await self._platform.launch_workers(label, options, handed)
        self._running.append(set(names))
        return names

    async def begin_drain(self, name: str) -> None:
        """Let one leave."""
        self._running = [left for names in self._running if (left := names - {name})]
        await self._platform.begin_drain(name)

    async def fleet(self) -> Fleet:
        """Workers, as a router sees them."""
        async with RouterClient(self._facts.router_addresses[0], dialer=self._platform.dialer) as router:
            return await router.fleet()


@asynccontextmanager
async def followed_models(
    platform: LocalPlatform, options: UpOptions, facts: PlatformFacts, data: DataDir, report: Callable[[str], None]
) -> AsyncIterator[None]:
    """Within it workers come and go with the records, those of earlier runs included."""
    async with open_redis(facts.redis_url) as redis:
        follower = SnapshotFollower(FollowedSnapshot(), RecordStore(redis), SystemClock(), SnapshotConfig())
        workers = LocalModelWorkers(platform, options, facts, data)
        pools = ModelPools(follower, workers, platform.digests, report)
        task = asyncio.create_task(pools.run(), name="model-pools")
        task.add_done_callback(partial(_tell_end, report))
        try:
            yield
        finally:
            await end_tasks([task])


def _tell_end(report: Callable[[str], None], task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        report(f"models that are added or removed from now on get no workers: {error!r}"[:300])
