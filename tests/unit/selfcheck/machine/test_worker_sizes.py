"""Shares of the machine that the workers of a platform take, as `stratos up` decides it before they start."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from stratos.common.errors import BadRequest, InvalidCheckpoint
from stratos.engine.sizing.machine import Machine
from stratos.selfcheck.machine.sizing import WorkerAsk, plan_workers, unset_alone
from tests.support.reference.tiny_models import save_tiny_llama

MACHINE = Machine(
    cpu_name="Test CPU", cpu_flags=frozenset(("avx2",)), num_cores=4, num_sockets=1, total_bytes=8 << 30,
    available_bytes=6 << 30, limited_by="container limit",
)  # fmt: skip
POOL = "STRATOS_DECODE_WORKER_RUNNER__KV_POOL_BYTES"


@pytest.fixture
def ask(tmp_path: Path) -> WorkerAsk:
    save_tiny_llama(tmp_path)
    return WorkerAsk(model_path=tmp_path, num_workers=3)


def test_all_workers_get_the_same_and_the_text_says_what_and_why(ask: WorkerAsk) -> None:
    fitted, text = plan_workers(ask, MACHINE, {})
    assert fitted.dtype == "float32"
    assert fitted.kv_pool_bytes > 0 < fitted.max_model_len
    assert "3 workers on Test CPU, AVX2, 4 cores, 6.0 GiB of 8.0 GiB free (container limit)" in text
    for word in ("dtype", "KV pool", "context", "token budget", "overlap", "engine", "kernels"):
        assert f"\n  {word} " in text, word


def test_flags_and_variables_of_workers_are_heeded(ask: WorkerAsk) -> None:
    asked = replace(ask, dtype="float16", max_model_len=50)
    fitted, _ = plan_workers(asked, MACHINE, {POOL: "2097152"})
    assert (fitted.dtype, fitted.max_model_len, fitted.kv_pool_bytes) == ("float16", 50, 2097152)
    plan, text = plan_workers(replace(ask, kv_pool_bytes=96 << 20), MACHINE, {})
    assert plan.kv_pool_bytes == 96 << 20
    assert re.search(r"KV pool +96\.0 MiB .*as set", text)
    settings = {"RUNNER__KV_POOL_BYTES": "1", "RUNNER__MAX_MODEL_LEN": "2"}
    assert unset_alone(settings, "STRATOS_DECODE_WORKER_", {POOL: "2097152"}) == {"RUNNER__MAX_MODEL_LEN": "2"}
    assert unset_alone(settings, "STRATOS_PREFILL_WORKER_", {POOL: "2097152"}) == settings


def test_what_does_not_fit_or_is_no_number_is_refused_before_anything_starts(ask: WorkerAsk) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"2\.0 GiB for each of 3 workers \(container limit\).*fewer workers"):
        plan_workers(ask, MACHINE, {POOL: str(3 << 30)})
    with pytest.raises(BadRequest, match="is not a number"):
        plan_workers(ask, MACHINE, {POOL: "much"})


def test_variables_of_both_roles_count_and_a_decode_workers_wins(ask: WorkerAsk) -> None:
    prefill = {POOL.replace("DECODE", "PREFILL"): "4194304", "STRATOS_PREFILL_WORKER_RUNNER__DTYPE": "bfloat16"}
    fitted, _ = plan_workers(ask, MACHINE, prefill)
    assert (fitted.kv_pool_bytes, fitted.dtype) == (4194304, "bfloat16")
    steps = {"STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_BATCHED_TOKENS": "77"}
    fitted, text = plan_workers(ask, MACHINE, prefill | steps | {POOL: "2097152"})
    assert (fitted.kv_pool_bytes, fitted.dtype) == (2097152, "bfloat16")
    assert "token budget  77 " in text


def test_a_value_out_of_its_bounds_is_refused_by_its_variable(ask: WorkerAsk) -> None:
    with pytest.raises(BadRequest, match="STRATOS_DECODE_WORKER_SCHEDULER__KV_WATERMARK='2' Input should be less"):
        plan_workers(ask, MACHINE, {"STRATOS_DECODE_WORKER_SCHEDULER__KV_WATERMARK": "2"})
