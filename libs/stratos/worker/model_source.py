"""Where a worker's model comes from: a folder that the settings name, or the registry in the object store.

    reference ──▶ manifest ──▶ in the node's cache? else streamed into it ──▶ folder and digest for the engine

The cache holds the model for as long as the process lives, so its files stay mapped.  A store that is away for longer
than the patience ends the start, and the next one goes on with what has come; a model that is in the cache whole needs
no store, if the reference has its whole digest.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from prometheus_client import CollectorRegistry

from stratos.common.clock import Clock
from stratos.rpc.binding import StartError
from stratos.rpc.instruments import Instruments, counter, gauge
from stratos.store.registry.catalogue import parse_reference
from stratos.store.registry.fetching import FetchWork, for_transfers
from stratos.store.registry.node_cache import CachedModel, NodeCache
from stratos.store.urls import open_store
from stratos.worker.settings import WorkerSettings

NUM_ATTEMPTS = 2
_log = logging.getLogger(__name__)


class LoadMetrics(Instruments):
    """How a worker came to its model."""

    # fmt: off
    load_seconds = gauge(
        "stratos_model_load_seconds", "Seconds of a start: fetch the model from the registry, load it.", "stage"
    )
    fetched_bytes = counter("stratos_model_fetched_bytes", "Bytes of the model that came from the object store.")
    kept_bytes = gauge(
        "stratos_model_cached_bytes", "Bytes of the model that the cache of the node had when this worker started."
    )
    failures = counter("stratos_model_fetch_failures", "Requests for parts of the model that the object store failed.")
    # fmt: on


class ModelSource:
    """Belongs to one worker.

    Args:
        settings: of the worker.
        clock: times the fetch.
        registry: for the metrics.
    """

    def __init__(self, settings: WorkerSettings, clock: Clock, registry: CollectorRegistry) -> None:
        self._settings = settings
        self._clock = clock
        self._held: CachedModel | None = None
        self.metrics = LoadMetrics(registry)

    async def open(self) -> WorkerSettings:
        """The settings with a folder in place of a reference; the folder stays until ``close``.

        Raises:
            StartError: there is no object store.
            StratosError: the model is not published, not what was published, or cannot be fetched.
        """
        settings, source = self._settings, self._settings.model
        if not source.source:
            return settings
        reference = parse_reference(source.source, "MODEL__SOURCE")
        if settings.object_store is None:
            raise StartError("MODEL__SOURCE names a model in the registry, which needs OBJECT_STORE__URL")
        began = self._clock.now()
        store = open_store(for_transfers(settings.object_store), num_attempts=NUM_ATTEMPTS)
        work = FetchWork(patience_s=source.patience_s, on_bytes=self.metrics.fetched_bytes.inc)
        try:
            cache = NodeCache(source.cache_directory, source.cache_bytes)
            model = self._held = await cache.hold_reference(store, reference, work)
        finally:
            self.metrics.failures.inc(work.num_failures)
            await store.close()
        took_s = self._clock.now() - began
        self.metrics.load_seconds.labels("fetch").set(took_s)
        self.metrics.kept_bytes.set(model.manifest.num_bytes - work.num_fetched_bytes)
        _log.info("%s is there: %d bytes came in %.1f s", reference, work.num_fetched_bytes, took_s)
        runner = replace(settings.runner, model_path=model.path, model_digest=model.handed_digest)
        fake = replace(settings.fake, model_path=model.path, model_digest=model.handed_digest)
        observe = replace(settings.observe, model_name=settings.observe.model_name or reference.name)
        return settings.model_copy(update={"runner": runner, "fake": fake, "observe": observe})

    def close(self) -> None:
        """Let the cache remove the model."""
        if self._held is not None:
            self._held.close()
