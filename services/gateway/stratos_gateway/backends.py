"""The real services and stores of a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

from redis.asyncio import Redis
from redis.exceptions import RedisError

from stratos.common.clock import Clock, SystemClock
from stratos.common.errors import DependencyDown
from stratos.common.ids import new_incarnation
from stratos.rpc.clients.dialer import Dialer
from stratos.rpc.clients.gateway import exchange_gateways, fetch_snapshot
from stratos.rpc.clients.peer_addresses import PeerAddresses
from stratos.rpc.clients.router import RouterClient
from stratos.store.authentication import KeyCheck
from stratos.store.counters.choice_affinity import ChoiceAffinity
from stratos.store.counters.guard import StoreId
from stratos.store.counters.key_use import KeyUse
from stratos.store.counters.leases import LeaseStore
from stratos.store.counters.redemptions import Redemptions
from stratos.store.counters.serving import ServingStore
from stratos.store.counters.tenant_tokens import TenantTokenStore
from stratos.store.data_keys import PlatformKeys, parse_platform_key
from stratos.store.keys import Peppers
from stratos.store.ledger.chain import Chain
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.memory_share import MemoryShare
from stratos.store.ledger.receipt_store import ReceiptStore
from stratos.store.ledger.sealer import Sealer
from stratos.store.ledger.segment_store import SegmentStore
from stratos.store.ledger.unsealed import UnsealedEntries
from stratos.store.ledger.usage_reader import MAX_CONNECTIONS, UsageReader
from stratos.store.ledger.window_store import WindowStore
from stratos.store.models.model_record import ModelRecord
from stratos.store.models.texts import TextFolders
from stratos.store.object_store import ObjectStore
from stratos.store.records.copy_keeper import CopyKeeper
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind
from stratos.store.records.record_store import RecordStore
from stratos.store.records.tenant_lookup import TenantLookup
from stratos.store.redis import open_redis
from stratos.store.sealed.answer_store import AnswerStore
from stratos.store.sealed.batch_store import BatchStore
from stratos.store.sealed.file_rewrites import FileRewrites
from stratos.store.sealed.file_store import FileBounds, FileStore
from stratos.store.sealed.moved_texts import MovedTexts
from stratos.store.sealed.response_store import ResponseBounds, ResponseStore
from stratos.store.sealed.stream_spill import SpillBounds, StreamSpill
from stratos.store.sealed.stream_store import StreamBounds, StreamStore
from stratos.store.tenancy.sub_keys import SubKeys
from stratos.store.urls import open_store
from stratos_gateway.access.data_keys import MissingDataKeys
from stratos_gateway.access.departed_tenants import DepartedTenants, living_tenants, plan_of
from stratos_gateway.access.moved_aliases import MovedAliases
from stratos_gateway.access.peer_copies import PeerCopies
from stratos_gateway.access.snapshot_metrics import SnapshotMetrics
from stratos_gateway.access.snapshot_servicer import SnapshotCopies
from stratos_gateway.admin.lists import StoredLists
from stratos_gateway.admin.model_routes import ModelStatus
from stratos_gateway.admin.routes import AdminStores
from stratos_gateway.choices.source import SnapshotChoices
from stratos_gateway.continuations.tokens import ContinuationTokens
from stratos_gateway.ledger.billing import LedgerAccess
from stratos_gateway.ledger.older_ledgers import OlderLedgers
from stratos_gateway.ledger.readings import UsageReadings
from stratos_gateway.ledger.sealing import Sealing
from stratos_gateway.ledger.settings import seal_limits
from stratos_gateway.limits.own_share import gateway_name
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.models.adapters import SnapshotAdapters, SnapshotBlocks
from stratos_gateway.models.aliases import AliasChoice, SnapshotAliases
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.shelf import ModelShelf, Phase, Placed, Wanted
from stratos_gateway.observe.tenant_series import TenantSeries, nothing_noted
from stratos_gateway.oidc.credentials import KeysAndTokens
from stratos_gateway.oidc.fetching import fetch_keys
from stratos_gateway.oidc.issuer_keys import IssuerKeys
from stratos_gateway.oidc.settings import OidcConfig
from stratos_gateway.oidc.token_check import TokenCheck
from stratos_gateway.parts import Backends
from stratos_gateway.policies.source import SnapshotContent
from stratos_gateway.response_cache.shared import SharedAnswers
from stratos_gateway.responses.sweep import ObjectSweep
from stratos_gateway.rollouts.parts import Rollouts, RolloutStores, SnapshotRollouts
from stratos_gateway.rollouts.shown import RolloutMetrics
from stratos_gateway.routers.router_set import RouterSet
from stratos_gateway.settings import GatewaySettings

MAX_NAMED = 100
"""Refused models with a series of their own."""


async def open_backends(
    settings: GatewaySettings, models: ModelSet, stack: AsyncExitStack, metrics: GatewayMetrics, dialer: Dialer
) -> Backends:
    """Connect lazily to routers and Redis; what was opened is closed by ``stack``."""
    clock, connect = SystemClock(), partial(RouterClient, dialer=dialer)
    addresses = PeerAddresses(settings.router_addresses, clock)
    name, convictions = models.home.base.name, settings.convictions
    routers = RouterSet(addresses, models.name_of, connect, settings.routers, convictions, metrics, clock, Random())
    stack.push_async_callback(routers.close)
    redis = open_redis(settings.redis_url.get_secret_value())
    stack.push_async_callback(redis.aclose)
    store = RecordStore(redis, settings.records)
    follower = SnapshotFollower(FollowedSnapshot(), store, clock, settings.snapshot)

    def store_id() -> str | None:
        return follower.snapshot.store_id

    key_use = KeyUse(redis, settings.records, store_id)
    tasks = {"snapshot": follower.run, "routers": routers.run, "key-use": key_use.run}
    if settings.snapshot.copy_path is not None:
        keeper = CopyKeeper(follower, settings.snapshot.copy_path, settings.snapshot.copy_interval_s)
        keeper.restore()
        tasks["snapshot-copy"] = keeper.run
    peers = PeerAddresses(settings.snapshot.peers, clock)
    if settings.snapshot.peers:
        tasks["snapshot-peers"] = PeerCopies(follower, peers, partial(fetch_snapshot, dialer=dialer)).run
    peppers = _peppers(settings)
    keys = KeyCheck(follower, peppers, note_use=key_use.note_use)
    issuers = _issuers(settings.oidc, clock)
    tasks |= {f"issuer-{place}": issuer.run for place, issuer in enumerate(issuers)}
    tokens = TokenCheck(issuers, TenantLookup(follower), settings.oidc.leeway_s)

    async def first_look() -> None:
        await follower.first_look()
        with contextlib.suppress(DependencyDown, RedisError):  # what it is shows later; what cannot work, now
            await store.check_server()

    share = MemoryShare(
        redis, settings.ledger.redis_share, clock, metrics.redis_memory.set, metrics.redis_file_failed.set
    )
    tasks["redis-state"] = share.run
    objects = _open_objects(settings, stack)
    shelf = open_shelf(settings, models, follower, objects, metrics, clock, stack)
    status = ModelStatus(shelf, models, routers.known_workers)
    aliases, rolling = SnapshotAliases(follower, models), SnapshotRollouts(follower.snapshot)
    choice, poll_s = AliasChoice(aliases, models, Random()), settings.model_records.live_poll_s
    own_name = gateway_name(name, new_incarnation())
    serving = ServingStore(redis, settings.records, own_name, store_id)
    at = RolloutStores(redis=redis, records=store, config=settings.records, store_id=store_id, serving=serving)
    rollouts = Rollouts.open(
        at, rolling, models, lambda: status.live_workers(), choice, settings.rollouts, clock, shelf.wait_for
    )
    tasks |= rollouts.tasks
    moved = MovedAliases(store, aliases, choice, store_id, poll_s, serving.lacking)
    tasks |= {"model-records": shelf.run, "aliases": moved.run}
    segments = None if objects is None else SegmentStore(objects)
    ledger = LedgerStore(redis, settings.records, settings.ledger.entries_kept_days, store_id, share, segments)
    if segments is not None:
        unsealed = UnsealedEntries(redis, settings.records, store_id)
        chain, limits = Chain(redis, settings.records, store_id), seal_limits(settings.ledger)
        sealer = Sealer(unsealed, chain, segments, limits, new_incarnation(), time.time)
        tasks["ledger-sealing"] = Sealing(sealer, metrics, settings.ledger.seal_poll_s).run
    reading = open_redis(settings.redis_url.get_secret_value(), max_connections=MAX_CONNECTIONS)
    stack.push_async_callback(reading.aclose)
    readings = UsageReadings(
        UsageReader(reading, settings.records, store_id, segments), clock, settings.ledger.usage_reads_per_min
    )
    receipts = None
    if settings.ledger.receipts_max_bytes:
        bounds = settings.ledger.receipts_max_bytes, settings.ledger.receipts_kept_s
        receipts = ReceiptStore(redis, settings.records, *bounds, store_id)
    older = OlderLedgers(ledger, partial(living_tenants, follower), follower.first_look)
    platform = _platform_keys(settings)
    answers, responses, streams, spill, sub_keys = None, None, None, None, SubKeys(follower, platform)
    if platform is not None and settings.ledger.shared_responses_bytes:
        shared_bytes = settings.ledger.shared_responses_bytes
        answers = AnswerStore(redis, settings.records, shared_bytes, sub_keys.find, store_id)
        shared = SharedAnswers(answers)
        tasks["shared-answers"] = shared.run
    if platform is not None and settings.responses.tenant_bytes:
        config = settings.responses
        kept = ResponseBounds(kept_s=config.kept_s, tenant_bytes=config.tenant_bytes, inline_bytes=config.inline_bytes)
        responses = ResponseStore(redis, settings.records, kept, sub_keys.find, objects, share.check, store_id)
        tasks["response-objects"] = ObjectSweep(responses, config.sweep_s).run
    if platform is not None and settings.streams.tenant_bytes:
        streams, spill = open_streams(redis, settings, sub_keys, store_id, objects, metrics, share.has_room)
        if spill is not None:
            tasks["stream-spill"] = spill.run
    continuations, redemptions = None, None
    if platform is not None and settings.continuations.kept_s:
        continuations = ContinuationTokens(sub_keys.find, settings.continuations)
        redemptions = Redemptions(redis, settings.records, settings.streams.kept_s, store_id)
    files, batches = None, None
    if platform is not None and objects is not None and settings.files.tenant_bytes:
        most = FileBounds(tenant_bytes=settings.files.tenant_bytes, tenant_files=settings.files.tenant_files)
        files = FileStore(redis, settings.records, most, sub_keys.find, objects, share.check, store_id, follower.unix_s)
        tasks["file-objects"] = ObjectSweep(files, settings.files.sweep_s).run
        most_batches = settings.batches.tenant_batches
        batches = BatchStore(redis, settings.records, files, name, most_batches, store_id, follower.unix_s)
    largest = None
    if num_series := settings.observe.max_tenant_series:
        look_s = settings.observe.tenant_series_interval_s
        largest = TenantTokenStore(redis, settings.records, num_series, look_s, store_id)
    places = receipts, answers, responses, streams, spill, batches, files, largest
    stored = [kept.forget for kept in places if kept is not None]
    rewrites = FileRewrites(redis, settings.records, clock, settings.admin.forget_after_s, store_id)
    forget = [routers.forget_tenant, *stored, rewrites.forget]
    departed = DepartedTenants(follower.snapshot, forget, settings.admin.forget_after_s)
    note_tokens = nothing_noted
    if largest is not None:
        series = TenantSeries(largest, metrics, departed.name_of, settings.observe.tenant_series_interval_s)
        note_tokens, tasks["tenant-series"] = series.note, series.run
    tasks |= {"older-ledgers": older.run, "departed-tenants": departed.run}
    if platform is not None:
        missing = MissingDataKeys(store, platform, follower, partial(living_tenants, follower), store_id)
        tasks["data-keys"] = missing.run
    return Backends(
        admin=AdminStores(
            records=store,
            lists=StoredLists(follower, key_use),
            peppers=peppers,
            store_id=store_id,
            ledger=ledger,
            readings=readings,
            platform=platform,
            models=status,
            rollouts=rollouts.access,
        ),
        shared_answers=None if answers is None else shared,
        responses=responses,
        streams=streams,
        continuations=continuations,
        sub_key=sub_keys.find,
        redemptions=redemptions,
        files=files,
        batches=batches,
        recall=keys.recall,
        routers=routers,
        adapters=SnapshotAdapters(follower),
        authenticator=KeysAndTokens(keys, tokens) if issuers else keys,
        aliases=aliases,
        choices=SnapshotChoices(follower),
        choice_affinity=(
            ChoiceAffinity(redis, settings.records, settings.choices.session_s, store_id)
            if settings.choices.session_s
            else None
        ),
        rollouts=rollouts.evidence,
        watch_drift=rollouts.watch_drift,
        blocks=SnapshotBlocks(follower),
        content=SnapshotContent(follower),
        leases=LeaseStore(redis, settings.records, own_name, store_id),
        exchange_gateways=partial(ask_peers, peers, dialer),
        ledger=LedgerAccess(
            store=ledger,
            plan_of=partial(plan_of, follower, departed),
            windows=WindowStore(redis, settings.records, store_id),
            name_of=departed.name_of,
            receipts=receipts,
            readings=readings,
        ),
        note_tokens=note_tokens,
        tasks=tasks,
        collectors=(SnapshotMetrics(follower), RolloutMetrics(rolling.all, aliases.find, time.time)),
        snapshot_text=SnapshotCopies(follower).text,
        first_look=first_look,
        on_change=follower.on_change,
        unix_s=follower.unix_s,
        on_departure=departed.on_departure,
        model_arrivals=shelf.wait_for,
        not_ready_reason=lambda: follower.not_ready_reason() or shelf.not_ready_reason(),
    )


def open_shelf(
    settings: GatewaySettings,
    models: ModelSet,
    follower: SnapshotFollower,
    objects: ObjectStore | None,
    metrics: GatewayMetrics,
    clock: Clock,
    stack: AsyncExitStack,
) -> ModelShelf:
    """Keeper of the models that records name; a folder that is not set is temporary."""
    config = settings.model_records
    folder = config.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stratos-models-")))

    def wanted() -> dict[str, Wanted]:
        found = follower.snapshot.of_kind(Kind.MODEL)
        return {r.id: Wanted(record=r.value, version=r.version) for r in found if isinstance(r.value, ModelRecord)}

    def show(placed: Mapping[str, Placed]) -> None:
        counts = Counter(one.phase.value for one in placed.values())
        refused = (one.wanted.record for one in placed.values() if one.phase is Phase.REFUSED)
        named = ((record.name, record.digest) for record in islice(refused, MAX_NAMED))
        metrics.show_records({phase.value: counts[phase.value] for phase in Phase}, named)

    shelf = ModelShelf(wanted, models, TextFolders(objects, folder), config, clock, show)
    follower.snapshot.on_record(Kind.MODEL, lambda record: shelf.note_change())
    return shelf


def open_streams(
    redis: Redis,
    settings: GatewaySettings,
    sub_keys: SubKeys,
    store_id: StoreId,
    objects: ObjectStore | None,
    metrics: GatewayMetrics,
    has_room: Callable[[], bool],
) -> tuple[StreamStore, StreamSpill | None]:
    """The records of streams, and what moves texts of theirs to the object store."""
    config = settings.streams
    does_spill, most = objects is not None and config.spill_after_s > 0, int(config.spill_part * config.tenant_bytes)

    def count(event: str, number: int) -> None:
        metrics.stream_records.labels(event).inc(number)

    bounds = StreamBounds(
        lease_s=config.lease_s,
        kept_s=config.kept_s,
        tenant_bytes=config.tenant_bytes,
        tenant_streams=config.tenant_streams,
        queued_s=config.background_s,
        tenant_queued=config.background_queued,
        spill_bytes=most if does_spill else 0,
        spill_look_s=config.spill_after_s / 4,
        has_room=has_room,
    )
    own, model = new_incarnation(), settings.model.served_name
    moved = MovedTexts(objects, config.spill_call_s, count)
    streams = StreamStore(redis, settings.records, bounds, own, sub_keys.find, store_id, model, moved)
    if objects is None:
        return streams, None
    when = SpillBounds(
        tenant_bytes=most,
        after_s=config.spill_after_s,
        kept_s=config.kept_s,
        poll_s=config.spill_poll_s,
        moves=does_spill,
    )
    at = redis, settings.records, when, streams.keys, streams.key, objects, store_id, count
    return streams, StreamSpill(*at)


def _open_objects(settings: GatewaySettings, stack: AsyncExitStack) -> ObjectStore | None:
    """Where goes what is too large or too old for Redis; raises ``BadRequest`` for a URL that names no object store."""
    if settings.object_store is None:
        return None
    objects = open_store(settings.object_store)
    stack.push_async_callback(objects.close)
    return objects


async def ask_peers(peers: PeerAddresses, dialer: Dialer, names: Sequence[str]) -> Sequence[Sequence[str]] | None:
    """Ask the other gateways whom they know; ``None`` where there may be some, and none answered."""
    asked = [exchange_gateways(address, names, dialer=dialer) for address in await peers.now()]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    heard = [answer for answer in answers if not isinstance(answer, BaseException)]
    others = [answer for answer in heard if answer]  # one that asks itself gets nothing
    are_all_heard = len(heard) == len(asked) and not peers.unanswered
    return others if others or are_all_heard else None


def _issuers(config: OidcConfig, clock: Clock) -> list[IssuerKeys]:
    fetch = partial(fetch_keys, timeout_s=config.timeout_s)
    return [IssuerKeys(issuer, fetch, clock, config) for issuer in config.issuers]


def _platform_keys(settings: GatewaySettings) -> PlatformKeys | None:
    """The platform keys, if there are any; raises ``BadRequest`` for one that is malformed."""
    if not (current := settings.platform_key.get_secret_value()):
        return None
    older = {name: parse_platform_key(key.get_secret_value()) for name, key in settings.older_platform_keys.items()}
    return PlatformKeys(current=parse_platform_key(current), current_id=settings.platform_key_id, older=older)


def _peppers(settings: GatewaySettings) -> Peppers:
    return Peppers(
        current=settings.key_pepper.get_secret_value(),
        current_id=settings.key_pepper_id,
        older={name: pepper.get_secret_value() for name, pepper in settings.older_key_peppers.items()},
    )
