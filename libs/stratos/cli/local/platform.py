"""One platform of ``stratos up``: in which order its processes start, and the facts a user needs at the end.

It composes ``topology`` (settings), ``supervisor`` (processes), the API key and the shipped adapters.  Everything
that does not need an address of another process starts at once: importing torch is the longest part by far.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from stratos.cli.adapters import RegistryAddress, publish_shipped_adapters
from stratos.cli.data.credentials import Credentials, load_credentials, load_platform_key
from stratos.cli.data.digests import digest_of
from stratos.cli.data.folder import DataDir, RunDir, try_lock, write_json_atomically
from stratos.cli.data.platform_facts import PlatformFacts
from stratos.cli.keyring import ensure_api_key
from stratos.cli.local import topology
from stratos.cli.local.embedded_redis import RedisConfig, redis_spec, write_config
from stratos.cli.local.options import UpOptions
from stratos.cli.local.ports import GatewayListeners, any_free_port, listen_from
from stratos.cli.local.process import ProcessView, StartFailed, wait_for_fleet
from stratos.cli.local.servicer import SupervisorService, SupervisorSettings
from stratos.cli.local.supervisor import Report, Supervisor
from stratos.cli.local.topology import Endpoints, ProcessSpec, Role
from stratos.cli.stores import StoreTarget, set_up_own_store
from stratos.common.clock import SystemClock
from stratos.common.errors import DependencyDown, InvalidCheckpoint, Overloaded, StratosError
from stratos.common.tls.identity import PeerRole
from stratos.core.files.handed_digest import digest_in
from stratos.observe.local_prometheus import LocalPrometheus, find_prometheus
from stratos.pki.local import dial_as, make_certificates, tls_config
from stratos.rpc.clients.dialer import Dialer
from stratos.rpc.clients.router import RouterClient
from stratos.rpc.forking.client import ForkServer
from stratos.rpc.serving.process import serve_async
from stratos.selfcheck.machine.sizing import unset_alone

FLEET_TIMEOUT_S = 60.0
LOOPBACK = "127.0.0.1"
"""The admin API is not for other machines."""
STORE_LOST = (
    "Redis has lost tenants, keys and adapters, or is another one: what gateways know goes on serving, and nothing can "
    "be written until `stratos admin adopt-store`"
)


class LocalPlatform:
    """Starts and stops everything; also what the autoscaler's requests end up at."""

    def __init__(
        self,
        options: UpOptions,
        *,
        data: DataDir,
        run: RunDir,
        credentials: Credentials,
        report: Report,
        fork_server: ForkServer | None = None,
    ) -> None:
        self._options = options
        self._data = data
        self._run = run
        self._credentials = credentials
        self._platform_key = load_platform_key(data)
        self._report = report
        self._tls_path = run.tls_path if options.mtls else None
        if self._tls_path is not None:
            make_certificates(self._tls_path)
        self._dialer = dial_as(self._tls_folder, PeerRole.SUPERVISOR)
        self._supervisor = Supervisor(
            run,
            report=report,
            clock=SystemClock(),
            drain_timeout_s=options.drain_timeout_s,
            dialer=self._dialer,
            fork_server=fork_server,
        )
        self._paths = topology.run_paths(run, data)
        self._stack = AsyncExitStack()
        self._redis_url = options.redis_url
        self._store_url = options.object_store_url or f"file://{data.store_path}"
        self._supervisor_address = ""
        self._has_own_redis = False
        self._digests: dict[Path, str] = {}
        self._added: set[str] = set()
        """Workers of models that records name."""
        self._is_started = False

    def views(self) -> list[ProcessView]:
        return self._supervisor.views()

    async def start_worker(self, role: str) -> ProcessView:
        """One more worker, for the autoscaler."""
        if not self._is_started:
            raise Overloaded("the platform is still starting; its own workers come first")
        options = self._options
        limit = options.decode_limit if role == "decode" else max(1, options.prefill)
        limit += sum(more.decode if role == "decode" else more.prefill for more in options.more_models)
        limit += sum(view.role == role and view.name in self._added for view in self.views())
        return await self._supervisor.start_worker(role, partial(self._worker_spec, role), limit)

    async def begin_drain(self, name: str) -> None:
        """Let a worker leave, for the autoscaler."""
        await self._supervisor.begin_drain(name)

    async def launch_workers(self, label: str, of: UpOptions, digest: str) -> list[str]:
        """Start workers for a further model, as many as its options say; returns their names.

        Args:
            label: part of their names.
            of: model and sizes.
            digest: of its folder, to hand over.

        Raises:
            DependencyDown: one does not start; the others leave again.
        """
        self._digests[of.model_path] = digest
        specs = [
            self._worker_spec(role, name, of)
            for role, count in (("prefill", of.prefill), ("decode", of.decode))
            for name in self._free_names(f"{role}-{label}", count)
        ]
        self._added.update(spec.name for spec in specs)
        ends = await asyncio.gather(*map(self._supervisor.launch, specs), return_exceptions=True)
        if failed := next((end for end in ends if isinstance(end, BaseException)), None):
            for spec, end in zip(specs, ends, strict=True):
                if isinstance(end, ProcessView):
                    await self.begin_drain(spec.name)
            if not isinstance(failed, StartFailed):
                raise failed
            raise DependencyDown(f"{failed}; its log: {failed.log_path}") from failed
        return [spec.name for spec in specs]

    def _free_names(self, label: str, count: int) -> list[str]:
        taken = {view.name for view in self.views()}
        return list(itertools.islice((n for i in itertools.count() if (n := f"{label}-{i}") not in taken), count))

    @property
    def dialer(self) -> Dialer:
        """Calls processes of the platform as its supervisor."""
        return self._dialer

    @property
    def digests(self) -> frozenset[str]:
        """Digests of the models that the options name."""
        paths = (self._options.model_path, *(more.model_path for more in self._options.more_models))
        return frozenset(digest_in(self._digests.get(path, "")) for path in paths)

    async def start(self) -> PlatformFacts:
        """Start everything; returns when the first request can be answered.

        Raises:
            StartFailed, StratosError: the first thing that went wrong; ``stop`` cleans up.
        """
        try:
            return await self._start()
        except BaseExceptionGroup as group:
            raise _first_leaf(group) from None

    async def _start(self) -> PlatformFacts:
        listeners = self._open_ports()
        await self._serve_supervisor()
        options = self._options
        for path in (options.model_path, *(more.model_path for more in options.more_models)):
            with contextlib.suppress(InvalidCheckpoint):  # a process that reads the folder says what is wrong with it
                self._digests[path] = await digest_of(path, self._data.digests_file)
        async with asyncio.TaskGroup() as tasks:
            for specs in self._first_workers():
                tasks.create_task(self._launch_in_turn(specs))
            router_tasks = [
                tasks.create_task(self._supervisor.launch(self._spec(f"router-{i}", "router", self._router())))
                for i in range(options.routers)
            ]
            await self._open_redis()
            has_store = await self._set_up_store()
            key_task = tasks.create_task(self._ensure_key(has_store))
            registry = await self._supervisor.launch(
                self._spec(
                    "lora-registry", "lora_registry", topology.registry_settings(options, self._ends(), self._paths)
                )
            )
            adapters_task = tasks.create_task(self._publish_adapters(registry.address, has_store))
            routers = tuple([(await task).address for task in router_tasks])
            ends = self._ends(routers=routers)
            tasks.create_task(
                self._supervisor.launch(
                    self._spec("autoscaler", "autoscaler", topology.autoscaler_settings(options, ends))
                )
            )
            for i in range(options.gateways):
                tasks.create_task(self._supervisor.launch(self._gateway_spec(f"gateway-{i}", ends, listeners)))
        await asyncio.gather(*(self._wait_fleet(address) for address in routers))
        prometheus_url = await self._observe()
        self._is_started = True
        facts = PlatformFacts(
            run_id=self._run.run_id,
            pid=os.getpid(),
            base_url=f"http://{listeners.public.address}/v1",
            admin_url=f"http://{listeners.admin.address}",
            api_key=key_task.result(),
            model=options.model_name,
            adapters=adapters_task.result(),
            router_addresses=routers,
            registry_address=registry.address,
            supervisor_address=self._supervisor_address,
            redis_url=self._redis_url,
            object_store_url=self._store_url,
            s3_endpoint_url=options.s3_endpoint_url,
            model_path=str(options.model_path),
            tls_folder=self._tls_folder,
            prometheus_url=prometheus_url,
        )
        write_json_atomically(self._run.platform_file, facts.as_json())
        return facts

    async def stop(self, *, is_urgent: Callable[[], bool]) -> None:
        """End every process, then the supervisor's own server, port and locks."""
        await self._supervisor.stop(is_urgent=is_urgent)
        await self._stack.aclose()

    @property
    def _tls_folder(self) -> str:
        return "" if self._tls_path is None else str(self._tls_path)

    async def _serve_supervisor(self) -> None:
        stop = asyncio.Event()
        service = SupervisorService(self)
        tls = None if self._tls_path is None else tls_config(self._tls_path, PeerRole.SUPERVISOR)
        settings = SupervisorSettings(tls=tls)
        server = asyncio.create_task(serve_async(service, settings, stop=stop), name="supervisor")

        async def end() -> None:
            stop.set()
            await server

        self._stack.push_async_callback(end)
        listening = asyncio.create_task(service.is_listening.wait())
        await asyncio.wait({server, listening}, return_when=asyncio.FIRST_COMPLETED)
        if server.done():
            listening.cancel()
            raise DependencyDown("the supervisor cannot listen on loopback; its reason is logged above")
        self._supervisor_address = service.address

    async def _open_redis(self) -> None:
        if self._redis_url:
            return
        folder = self._data.path / "redis"
        lock = try_lock(folder / "lock")
        if lock is None:
            folder = self._run.path / "redis"  # another run of this data directory has the lasting one
            self._has_own_redis = True
        else:
            self._stack.callback(lock.close)
        config = RedisConfig(port=any_free_port(), folder=folder, password=secrets.token_hex(16))
        await self._supervisor.launch(redis_spec(write_config(config)), redis_url=config.url)
        self._redis_url = config.url

    async def _observe(self) -> str:
        """Start a Prometheus where one is asked for; returns its URL."""
        if not self._options.observe:
            return ""
        folder = self._run.path / "prometheus"
        prometheus = LocalPrometheus(
            binary=find_prometheus(), folder=folder, targets_file=self._run.targets_file, port=any_free_port()
        )
        prometheus.write_files()
        spec = ProcessSpec(
            name="prometheus", service="prometheus", argv=prometheus.argv(), readiness="prometheus",
            public_address=prometheus.address, start_timeout_s=30.0,
        )  # fmt: skip
        await self._supervisor.launch(spec)
        return f"http://{prometheus.address}"

    async def _set_up_store(self) -> bool:
        target = StoreTarget(
            redis_url=self._redis_url,
            object_store_url=self._store_url,
            s3_endpoint_url=self._options.s3_endpoint_url,
        )
        try:
            is_there = await set_up_own_store(target, self._credentials, self._data, is_new=self._has_own_redis)
            self._credentials = load_credentials(self._data)
        except DependencyDown as error:
            if not self._options.redis_url:
                raise
            place = self._options.redis_url.rpartition("@")[2]  # without the password
            raise DependencyDown(
                f"the Redis at {place.removeprefix('redis://')} does not answer; correct --redis-url (REDIS_URL), or "
                "leave it away and the platform brings its own"
            ) from error
        if not is_there:
            self._report(STORE_LOST)
        return is_there

    async def _ensure_key(self, has_store: bool) -> str:
        if not has_store:
            return self._credentials.api_key
        return await ensure_api_key(self._redis_url, self._credentials, self._data)

    @property
    def _copies(self) -> Path:
        """Where gateways keep what they know; copies of a Redis of this run alone end with it."""
        return self._run.path / "copies" if self._has_own_redis else self._data.copies_path

    def _open_ports(self) -> GatewayListeners:
        """Connections that come before a gateway serves wait in the queue of the socket."""
        options = self._options
        public = listen_from(options.host, options.port)
        self._stack.callback(public.close)
        if public.port != options.port:
            self._report(f"port {options.port} is busy: the gateways take {public.port}")
        admin = listen_from(LOOPBACK, options.admin_port, "--admin-port")
        self._stack.callback(admin.close)
        return GatewayListeners(public, admin)

    def _gateway_spec(self, name: str, ends: Endpoints, listeners: GatewayListeners) -> ProcessSpec:
        copy_path = self._copies / f"{name}.jsonl"
        spec = self._spec(name, "gateway", topology.gateway_settings(self._options, ends, listeners, copy_path))
        return dataclasses.replace(spec, public_address=listeners.public.address, listeners=listeners.fds)

    async def _publish_adapters(self, registry_address: str, has_store: bool) -> tuple[str, ...]:
        options = self._options
        if not has_store or not options.uses_shipped_model or options.engine == "fake":
            return ()
        return await publish_shipped_adapters(
            options.model_path, handed_digest=self._digests.get(options.model_path, ""), store_url=self._store_url,
            s3_endpoint_url=options.s3_endpoint_url, registry=RegistryAddress.local(registry_address, self._tls_folder),
        )  # fmt: skip

    async def _wait_fleet(self, router_address: str) -> None:
        """A router has a status of every worker, so the first request finds a place."""
        wanted = sum(len(specs) for turns in self._first_workers() for specs in turns)
        async with RouterClient(router_address, dialer=self._dialer) as router:
            await wait_for_fleet(router.fleet, wanted, FLEET_TIMEOUT_S)

    def _first_workers(self) -> list[list[list[ProcessSpec]]]:
        return topology.first_workers(self._options, self._worker_spec)

    async def _launch_in_turn(self, models: Sequence[Sequence[ProcessSpec]]) -> None:
        """Start workers of one model after the other; all but the last sleep before the next begins."""
        for place, specs in enumerate(models, 1):
            views = await asyncio.gather(*map(self._supervisor.launch, specs))
            if place < len(models):
                await asyncio.gather(*(self._supervisor.put_to_sleep(view.name) for view in views))

    def _worker_spec(self, role: str, name: str, of: UpOptions | None = None) -> ProcessSpec:
        """A worker of the model that ``of`` has, the first one without it."""
        options = of or self._options
        settings = topology.worker_settings(name, options, self._ends(), self._paths)
        sizes = unset_alone(topology.worker_sizes(options), f"STRATOS_{role.upper()}_WORKER_", os.environ)
        worker_role: Role = "prefill" if role == "prefill" else "decode"
        return self._spec(name, f"{role}_worker", settings | sizes, role=worker_role)

    def _spec(self, name: str, module: str, settings: dict[str, str], *, role: Role = "") -> ProcessSpec:
        address_file = self._run.address_file(name)
        return topology.service_spec(
            name, module, settings, address_file=address_file, options=self._options, role=role, tls_path=self._tls_path
        )

    def _router(self) -> dict[str, str]:
        return topology.router_settings(self._options, self._paths)

    def _ends(self, *, routers: tuple[str, ...] = ()) -> Endpoints:
        return Endpoints(
            redis_url=self._redis_url,
            object_store_url=self._store_url,
            routers=routers,
            supervisor=self._supervisor_address,
            pepper=self._credentials.pepper,
            platform_key=self._platform_key,
            digests=self._digests,
        )


def _first_leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure worth telling: a process that did not start, else an error of ours, else the first one."""
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves.append(_first_leaf(error) if isinstance(error, BaseExceptionGroup) else error)
    for kind in (StartFailed, StratosError):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return leaves[0]
