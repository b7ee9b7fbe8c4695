"""Models of ``stratos up``: names and paths as flags give them, and how the machine is shared."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from stratos.cli.local.options import UpOptions, options_for, parse_model
from stratos.cli.local.topology import (
    Endpoints,
    ProcessSpec,
    RunPaths,
    autoscaler_settings,
    first_workers,
    router_settings,
    worker_settings,
)
from stratos.common.errors import BadRequest

MAKE = partial(UpOptions, prefill=1, decode=2, threads=1, max_decode=3)


def test_a_path_may_have_a_name_before_it(tmp_path: Path) -> None:
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert parse_model("small=/models/draft") == ("small", Path("/models/draft"))
    assert parse_model("/models/draft") == ("", Path("/models/draft"))
    assert parse_model(str(odd)) == ("", odd)


def test_a_reference_to_the_registry_stays_one_and_its_name_is_the_models() -> None:
    pinned = f"registry:org/draft@{'a' * 12}"
    assert parse_model(f"small={pinned}") == ("small", Path(pinned))
    assert parse_model("registry:draft") == ("draft", Path("registry:draft"))
    for wrong in ("registry:draft@", "small=registry:draft@12"):
        with pytest.raises(BadRequest, match="is no reference"):
            parse_model(wrong)


def test_workers_of_a_published_model_get_its_reference_and_the_cache(tmp_path: Path) -> None:
    paths = RunPaths(workers_folder=tmp_path, shm_path=tmp_path, work_path=tmp_path, kv_path=tmp_path)
    options = MAKE(model_path=Path("/cache/x"), source="registry:draft@aa", data_dir=tmp_path)
    settings = worker_settings("decode-0", options, Endpoints(), paths)
    assert settings["MODEL__SOURCE"] == "registry:draft@aa"
    assert settings["MODEL__CACHE_DIRECTORY"] == str(tmp_path / "models")
    assert "MODEL__SOURCE" not in worker_settings("decode-0", MAKE(model_path=tmp_path), Endpoints(), paths)


def test_without_a_flag_the_shipped_model_is_the_only_one() -> None:
    options = options_for([], Path("/models/base"), MAKE)
    assert (options.model_name, options.more_models, options.num_workers) == ("base", (), 3)
    with pytest.raises(BadRequest, match="no shipped model"):
        options_for([], None, MAKE)


def test_further_models_share_the_machine_and_their_workers_are_not_the_scaled_pool() -> None:
    options = options_for(["/models/base", "small=/models/draft"], None, MAKE)
    [small] = options.more_models
    assert (options.model_name, small.model_name, small.model_path) == ("base", "small", Path("/models/draft"))
    assert options.num_workers == small.num_workers == 6
    ends = Endpoints(digests={Path("/models/base"): "d1@state", Path("/models/draft"): "d2@state"})
    [pool] = json.loads(autoscaler_settings(options, ends)["POOLS"])
    assert pool == {"role": "decode", "served_name": "base", "min_workers": 2, "max_workers": 3, "model_digest": "d1"}


def test_a_model_may_have_workers_of_another_number_than_the_others() -> None:
    options = options_for(["/models/base", "/models/tools"], None, MAKE, ["tools=0+1"])
    [tools] = options.more_models
    assert (options.prefill, options.decode, tools.prefill, tools.decode) == (1, 2, 0, 1)
    assert options.num_workers == tools.num_workers == 4
    assert (options.kv_pool_bytes, tools.kv_pool_bytes) == (0, 0)
    options = options_for(["/models/base", "/models/tools"], None, MAKE, ["tools=0+1:96MiB"])
    assert (options.kv_pool_bytes, options.more_models[0].kv_pool_bytes) == (0, 96 << 20)


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ("tools=0", "NAME=PREFILL"),
        ("tools=0-1", "NAME=PREFILL"),
        ("tools=0+1:96", "NAME=PREFILL"),
        ("tools=0+1:0MiB", "NAME=PREFILL"),
        ("other=0+1", "is called 'other'"),
        ("tools=0+0", "--decode must be"),
        ("tools=99+1", "--prefill must be"),
    ],
)
def test_workers_that_cannot_be_are_refused(workers: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        options_for(["/models/base", "/models/tools"], None, MAKE, [workers])


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (["/a/base", "/b/base"], "2 models have the name 'base'"),
        (["x=/a/base", "x=/b/other"], "2 models have the name 'x'"),
        (["/a/base", "/b/with space"], "cannot name the workers"),
    ],
)
def test_names_that_cannot_be_are_refused(models: list[str], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        options_for(models, None, MAKE)


SHARERS = ["/models/base", "/models/draft", "/models/tools"]


def shared(names: str, workers: tuple[str, ...] = (), **changes: object) -> UpOptions:
    make = partial(UpOptions, **{"prefill": 1, "decode": 1, "share_device": names, **changes})  # type: ignore[arg-type]
    return options_for(SHARERS, None, make, workers)


def test_models_that_take_turns_are_counted_once_where_the_machine_is_divided() -> None:
    options = shared("draft, base", ("draft=0+3",))
    draft, tools = options.more_models
    assert (options.sharers, options.is_shared, draft.is_shared, tools.is_shared) == (
        ("draft", "base"),
        True,
        True,
        False,
    )
    assert [model.num_workers for model in (options, draft, tools)] == [5, 5, 5], "3 of those by turns, and 2 beside"
    assert options.decode_limit == 1, "no scaler adds a worker on a device that another model may have"
    groups = first_workers(options, lambda role, name, of: ProcessSpec(name=name, argv=(of.model_name,)))
    names = [[[spec.name for spec in specs] for specs in group] for group in groups]
    assert names == [
        [["prefill-tools-0", "decode-tools-0"]],
        [["prefill-0", "decode-0"], ["decode-draft-0", "decode-draft-1", "decode-draft-2"]],
    ], "one after the other; the first that the flag names is started last and keeps the device"


def test_the_autoscaler_gives_turns_to_models_by_their_digests() -> None:
    ends = Endpoints(digests={Path(path): f"d{number}@s" for number, path in enumerate(SHARERS)})
    settings = autoscaler_settings(shared("draft,base"), ends)
    assert json.loads(settings["SHARED_DEVICES"]) == [["d1", "d0"]]
    base, draft = json.loads(settings["POOLS"])
    assert (base["model_digest"], base["min_workers"], base["max_workers"]) == ("d0", 1, 1)
    assert (draft["model_digest"], draft["mode"], draft["served_name"]) == ("d1", "none", "draft")
    assert "SHARED_DEVICES" not in autoscaler_settings(MAKE(model_path=Path("/models/base")), ends)
    paths = RunPaths(workers_folder=Path("/w"), shm_path=Path("/s"), work_path=Path("/x"), kv_path=Path("/k"))
    assert "QUEUE__WAKE_TIMEOUT_S" in router_settings(shared("draft,base"), paths)
    assert "QUEUE__WAKE_TIMEOUT_S" not in router_settings(MAKE(model_path=Path("/models/base")), paths)


@pytest.mark.parametrize(
    ("names", "changes", "said"),
    [
        ("base", {}, "two models or more"),
        ("base,", {}, "two models or more"),
        ("base,other", {}, "is called 'other'"),
        ("base,base", {}, "'base' twice"),
        ("base,draft", {"max_decode": 3}, "leave --max-decode away"),
        ("base,draft", {"transport": "cuda_ipc", "device": "cuda"}, "cuda_ipc"),
    ],
)
def test_what_cannot_share_a_device_is_said_at_the_start(names: str, changes: dict[str, object], said: str) -> None:
    with pytest.raises(BadRequest, match=said) as refusal:
        shared(names, **changes)
    assert refusal.value.param == "--share-device"


def test_the_first_model_may_begin_without_a_worker_and_further_ones_may_not() -> None:
    options = options_for(["/models/base"], None, partial(UpOptions, prefill=0, decode=0, threads=1, max_decode=2))
    assert (options.num_workers, options.decode_limit) == (0, 2)
    assert options_for(["/models/base"], None, partial(UpOptions, prefill=0, decode=0, threads=1)).decode_limit >= 1
    [pool] = json.loads(autoscaler_settings(options, Endpoints())["POOLS"])
    assert (pool["min_workers"], pool["max_workers"]) == (0, 2)
    paths = RunPaths(workers_folder=Path("/w"), shm_path=Path("/s"), work_path=Path("/x"), kv_path=Path("/k"))
    assert "QUEUE__WAKE_TIMEOUT_S" in router_settings(options, paths)
    with pytest.raises(BadRequest, match="first model alone"):
        options_for(["/models/base", "/models/draft"], None, partial(UpOptions, decode=0))
    with pytest.raises(BadRequest, match="raise --decode") as refusal:
        options_for(
            ["/models/base", "/models/draft"], None, partial(UpOptions, share_device="base,draft"), ["base=1+0"]
        )
    assert refusal.value.param == "--share-device"


def test_one_folder_of_two_names_takes_no_turns() -> None:
    models = ["one=/models/base", "two=/models/x/../base"]
    with pytest.raises(BadRequest, match="names one folder twice"):
        options_for(models, None, partial(UpOptions, share_device="one,two"))
