"""Processes and their settings: every variable that `stratos up` sets is a field of the service's settings class."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from stratos.cli.data.folder import DataDir
from stratos.cli.local import topology
from stratos.cli.local.options import UpOptions, options_for
from stratos.cli.local.ports import GatewayListeners, any_free_port, listen_from
from stratos.cli.local.topology import Endpoints, ProcessSpec, RunPaths
from stratos.common.errors import BadRequest
from stratos.common.tls.settings import TlsConfig
from stratos.core.placement import WorkerRole
from stratos.planning.settings import PoolBounds
from stratos.rpc.settings import check_names, load_settings

ENDS = Endpoints(
    redis_url="redis://:secret@127.0.0.1:1/0",
    object_store_url="s3://bucket/prefix",
    routers=("127.0.0.1:2", "127.0.0.1:6"),
    supervisor="127.0.0.1:4",
    pepper="p" * 64,
)
OPTIONS = UpOptions(
    model_path=Path("/models/base"), s3_endpoint_url="http://127.0.0.1:5", decode=2, max_decode=3, transport="gloo",
    lenient=True,
)  # fmt: skip
LISTENERS = GatewayListeners(*(listen_from("127.0.0.1", any_free_port()) for _ in range(2)))
PATHS = RunPaths(
    workers_folder=Path("/run/workers"), shm_path=Path("/shm"), work_path=Path("/work"), kv_path=Path("/kv")
)
SETTINGS = {
    "lora_registry": topology.registry_settings(OPTIONS, ENDS, PATHS),
    "router": topology.router_settings(OPTIONS, PATHS),
    "prefill_worker": topology.worker_settings("prefill-0", OPTIONS, ENDS, PATHS) | topology.worker_sizes(OPTIONS),
    "decode_worker": topology.worker_settings("decode-1", OPTIONS, ENDS, PATHS) | topology.worker_sizes(OPTIONS),
    "gateway": topology.gateway_settings(OPTIONS, ENDS, LISTENERS, Path("/copies/gateway-0.jsonl")),
    "autoscaler": topology.autoscaler_settings(OPTIONS, ENDS),
}
LISTENERS.public.close()
LISTENERS.admin.close()


def spec_of(module: str) -> ProcessSpec:
    return topology.service_spec(
        module, module, SETTINGS[module], address_file=Path("/run/address.json"), options=OPTIONS
    )


def settings_class(module: str) -> type:
    name = "".join(part.capitalize() for part in module.split("_")) + "Settings"
    return getattr(importlib.import_module(f"stratos_{module}.settings"), name)


@pytest.mark.parametrize("module", SETTINGS)
def test_services_understand_what_they_are_given(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, cls = spec_of(module), settings_class(module)
    check_names(cls, spec.env)
    for name, value in spec.env.items():
        monkeypatch.setenv(name, value)
    loaded = load_settings(cls)
    assert loaded.listen == "127.0.0.1:0"
    assert loaded.drain_timeout_s == OPTIONS.drain_timeout_s
    assert loaded.address_file == "/run/address.json"
    assert spec.listen_env in spec.env
    assert spec.argv[-1] == f"stratos_{module}"


@pytest.mark.parametrize("module", SETTINGS)
def test_with_mtls_a_service_gets_the_certificate_of_its_own_role(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = topology.service_spec(
        module, module, {}, address_file=Path("/run/a.json"), options=OPTIONS, tls_path=Path("/run/tls")
    )
    for name, value in {**spec_of(module).env, **spec.env}.items():
        monkeypatch.setenv(name, value)
    folder = Path("/run/tls") / module.replace("_", "-")
    assert load_settings(settings_class(module)).tls == TlsConfig(
        certificate_path=folder / "tls.crt", key_path=folder / "tls.key", ca_path=folder / "ca.crt", domain="local"
    )
    assert not [name for name in spec_of(module).env if "TLS__" in name]


def test_no_library_of_a_worker_takes_more_threads_than_its_share_from_its_import_on() -> None:
    spec = topology.service_spec(
        "decode-0", "decode_worker", {}, address_file=Path("/run/a.json"), options=OPTIONS, role="decode"
    )
    assert spec.env["OMP_NUM_THREADS"] == str(OPTIONS.threads_per_worker)
    assert "OMP_NUM_THREADS" not in spec_of("router").env


def test_spares_come_after_the_decode_workers_and_have_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(OPTIONS, spares=1, threads=1)
    specs = topology.first_workers(options, lambda role, name, of: spec_of(f"{role}_worker"))
    assert [spec.is_spare for spec in specs[0][0]] == [False] * 3 + [True]
    for name, value in specs[0][0][-1].env.items():
        monkeypatch.setenv(name, value)
    assert load_settings(settings_class("decode_worker")).is_spare
    again = topology.spare_of(specs[0][0][-1], is_spare=False)
    assert again.env["STRATOS_DECODE_WORKER_IS_SPARE"] == "false"
    assert options.most_workers == replace(OPTIONS, threads=1).most_workers + 1
    assert options.num_workers == OPTIONS.num_workers, "a spare computes nothing, so it takes no cores"


def test_spot_workers_come_beside_the_decode_workers_and_take_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(OPTIONS, spot=2, threads=1)
    specs = topology.first_workers(options, lambda role, name, of: replace(spec_of(f"{role}_worker"), name=name))
    assert [spec.name for spec in specs[0][0] if spec.is_spot] == ["decode-spot-0", "decode-spot-1"]
    for name, value in specs[0][0][-1].env.items():
        monkeypatch.setenv(name, value)
    assert load_settings(settings_class("decode_worker")).is_spot
    assert options.num_workers == OPTIONS.num_workers + 2
    assert options.pool_of("decode-spot-0") == ""
    made = options_for(["/m/a", "/m/b"], None, partial(UpOptions, spot=1))
    assert (made.spot, made.more_models[0].spot, made.num_workers) == (1, 0, 5), "of the first model alone"


def test_an_unknown_setting_would_be_noticed() -> None:
    with pytest.raises(SystemExit, match="unknown setting"):
        check_names(settings_class("router"), {"STRATOS_ROUTER_NO_SUCH_THING": "1"})


def test_values_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in spec_of("decode_worker").env.items():
        monkeypatch.setenv(name, value)
    worker = load_settings(settings_class("decode_worker"))
    assert worker.worker_id == "decode-1"
    assert worker.transport.names == ("gloo",)
    store = worker.object_store
    assert (store.url, store.s3_endpoint_url) == ("s3://bucket/prefix", "http://127.0.0.1:5")
    for name, value in spec_of("autoscaler").env.items():
        monkeypatch.setenv(name, value)
    scaler = load_settings(settings_class("autoscaler"))
    assert scaler.pools == (PoolBounds(role=WorkerRole.DECODE, served_name="base", min_workers=2, max_workers=3),)
    assert scaler.router_addresses == ENDS.routers


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(ENDS)
    assert ENDS.pepper not in repr(ENDS)


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"gateways": 0}, "--gateways"),
        ({"routers": 9}, "--routers"),
        ({"prefill": -1}, "--prefill"),
        ({"decode": -1}, "--decode"),
        ({"decode": 17}, "--decode"),
        ({"decode": 3, "max_decode": 2}, "--max-decode"),
        ({"spares": 17}, "--spares"),
        ({"decode": 0, "spares": 1}, "--spares"),
        ({"spares": 1, "pools": "fast"}, "--spares does not go with --pools"),
        ({"spares": 1, "share_device": "a,b"}, "--spares does not go with --share-device"),
        ({"spot": 17}, "--spot"),
        ({"decode": 0, "spot": 1}, "--spot"),
        ({"spot": 1, "share_device": "a,b"}, "--spot does not go with --share-device"),
        ({"port": 0}, "--port"),
        ({"port": 70000}, "--port"),
        ({"engine": "x"}, "--engine"),
        ({"transport": "nccl"}, "--transport"),
        ({"transport": "tls"}, "--mtls"),
        ({"transport": "gloo", "mtls": True}, "--transport gloo does not encrypt"),
    ],
)
def test_options_out_of_range(change: dict[str, object], flag: str) -> None:
    with pytest.raises(BadRequest, match=flag):
        UpOptions(model_path=Path("/m"), **change)


def test_threads_are_shared_between_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratos.cli.local.options.num_cores", lambda: 8)
    assert UpOptions(model_path=Path("/m"), prefill=1, decode=1).threads_per_worker == 4
    assert UpOptions(model_path=Path("/m"), prefill=8, decode=8).threads_per_worker == 1


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"prefill": 1, "decode": 1}, 1),
        ({"prefill": 1, "decode": 2}, 3),
        ({"prefill": 8, "decode": 8}, 8),
        ({"prefill": 1, "decode": 2, "threads": 3}, 2),
        ({"prefill": 1, "decode": 2, "threads": 1}, 3),
        ({"prefill": 1, "decode": 1, "max_decode": 5}, 5),
    ],
    ids=["shared-out", "two-left", "crowded", "own-threads-taken", "own-threads-left", "asked-for"],
)
def test_no_worker_is_added_on_cores_that_are_taken_unless_asked(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, int], limit: int
) -> None:
    monkeypatch.setattr("stratos.cli.local.options.num_cores", lambda: 8)
    assert UpOptions(model_path=Path("/m"), **options).decode_limit == limit


def test_decode_workers_have_the_labels_in_their_order() -> None:
    options = UpOptions(model_path=Path("/models/base"), pools="fast, ,slow")
    named = [options.pool_of(name) for name in ("decode-0", "decode-1", "decode-2", "decode-3", "prefill-0")]
    assert named == ["fast", "", "slow", "", ""]


def test_kv_on_disk_outlives_the_run(tmp_path: Path) -> None:
    settings = topology.worker_settings("decode-0", replace(OPTIONS, kv_disk_gib=3), ENDS, PATHS)
    assert settings["DISK_TIER__DIRECTORY"] == "/kv/decode-0"
    assert int(settings["DISK_TIER__MAX_BYTES"]) == 3 << 30
    assert SETTINGS["decode_worker"]["DISK_TIER__MAX_BYTES"] == "0"
    with pytest.raises(BadRequest, match="--kv-disk"):
        replace(OPTIONS, kv_disk_gib=-1)
    data = DataDir(tmp_path)
    assert data.kv_path.is_relative_to(tmp_path)
    assert not data.kv_path.is_relative_to(tmp_path / "run")


@pytest.mark.parametrize(
    ("kv_host", "device", "pool", "share"),
    [("auto", "cpu", 0, None), ("auto", "cuda", 0, 0.25 / 2), ("off", "cuda", 0, 0.0), ("3", "cuda", 3, 0.0),
     ("3", "cpu", 3, None)],
)  # fmt: skip
def test_host_memory_for_kv_is_shared_by_all_workers_of_the_machine(
    kv_host: str, device: str, pool: int, share: float | None
) -> None:
    options = UpOptions(model_path=Path("/m"), prefill=1, decode=1, max_decode=1, kv_host=kv_host, device=device)
    sizes = topology.worker_sizes(options)
    assert int(sizes["RUNNER__HOST_POOL_BYTES"]) == pool << 30
    assert (float(sizes["RUNNER__HOST_MEMORY_SHARE"]) if share is not None else None) == share
    assert ("RUNNER__HOST_MEMORY_SHARE" in sizes) == (device == "cuda")


@pytest.mark.parametrize("wrong", ["0", "-1", "4097", "1.5", "all", "", "99999"])
def test_what_is_no_size_of_host_memory_is_refused(wrong: str) -> None:
    with pytest.raises(BadRequest, match="--kv-host must be auto, off or 1 to 4096"):
        UpOptions(model_path=Path("/m"), kv_host=wrong)
