"""Rows of a GPU, from reports of the check: the newest one that has their sections, with its hardware."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stratos.calculators.hardware.devices import devices
from stratos.reproduce import gpu_checks
from stratos.reproduce.catalogue import ROWS, ReproducedRow, find_row
from stratos.reproduce.gpu_checks import committed_checks, read_check, run_check
from stratos.reproduce.measuring import gpu_document, measure_row
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.rows.gpu.sampling import WAYS

GPU_ROWS = [row for row in ROWS if row.needs_gpu]
ENVIRONMENT = {"device": "NVIDIA H100 80GB HBM3", "torch": "2.11.0", "commit": "abc", "utc": "2026-11-26T11:00:00Z"}


def step(step_ms: float, tokens_per_s: float) -> dict[str, float]:
    return {"step_ms": step_ms, "roofline_ms": step_ms / 2, "mbu": 0.5, "tokens_per_s": tokens_per_s}


def sampled(ms: float) -> dict[str, Any]:
    times = {f"{way}_ms_per_token": ms / (number + 1) for number, way in enumerate(WAYS)}
    return {**times, "differing_tokens": dict.fromkeys(WAYS, 0)}


def report(**changes: Any) -> dict[str, Any]:
    results = {
        "sampling": {
            "greedy_1x32000": {},
            "top_k_top_p_1x32000": sampled(4.0),
            "top_k_top_p_8x32000": sampled(2.0),
            "top_k_top_p_64x32000": {"skipped": "no time left"},
        },
        "decode": {
            "copy_gb_per_s": 3015.0,
            "greedy_256": step(20.0, 12_800.0),
            "greedy_1": step(6.25, 160.0),
            "greedy_128": {"skipped": "no time left"},
        },
        "prefill": {
            "prompt_4096": {"ms": 100.0, "tflop_per_s": 494.7, "tokens_per_s": 40_960},
            "prompt_8192": {"skipped": "no time left"},
        },
    }
    sections = {name: {"status": "ok", "took_s": 10.0, "results": found} for name, found in results.items()}
    return {"environment": {**ENVIRONMENT, **changes}, "sections": sections}


def write(folder: Path, name: str, content: dict[str, Any]) -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def made(row: str, folder: Path, **changes: Any) -> dict[str, Any]:
    return gpu_document(find_row(row), read_check(write(folder, "gpu-one.json", report(**changes))))


def owns(document: dict[str, Any]) -> dict[str, float]:
    return {own["name"]: own["value"] for answer in document["answers"] if (own := answer["own"]) is not None}


@pytest.mark.parametrize("row", GPU_ROWS, ids=lambda row: row.name)
def test_a_row_names_its_gpu_its_file_and_its_command(row: ReproducedRow, tmp_path: Path) -> None:
    found = made(row.name, tmp_path, is_changed=True)
    assert json.loads(json.dumps(found)) == found
    where = found["environment"]
    assert (where["gpu"], where["file"], where["commit"]) == ("NVIDIA H100 80GB HBM3", "gpu-one.json", "abc+")
    assert found["command"] == f"stratos reproduce {row.name} --gpu"
    assert found["run"]["duration_s"] == 10.0 * len(row.sections)
    assert [one["claim"] for one in found["answers"] if not re.fullmatch(r"\d\.\d+", one["claim"])] == []


def test_sampling_is_compared_with_the_sort_on_the_host(tmp_path: Path) -> None:
    found = made("sampling-on-gpu", tmp_path)
    assert owns(found) == {"host_sorted_ms": 4.0, "host_sorted_ms_of_200": 800.0}
    assert found["tables"][0]["rows"] == [
        [32000, 1, 4.0, 2.0, 1.33333, 1.0, 4.0],
        [32000, 8, 2.0, 1.0, 0.666667, 0.5, 4.0],
    ]


def test_utilisation_is_over_the_datasheet_of_that_gpu(tmp_path: Path) -> None:
    found = made("gpu-utilisation", tmp_path)
    decode, prompts = (table["rows"] for table in found["tables"])
    assert [row[0] for row in decode] == [1, 256]
    assert decode[0][5] == pytest.approx(0.5 * 3015 / 3350)
    assert prompts[0][4] == pytest.approx(0.5)
    # 12,800 tokens/s of 15.56 GFLOP each, of 989.4 TFLOP/s
    assert owns(found)["decode_mfu"] == pytest.approx(0.2013, rel=1e-3)


def test_a_gpu_without_a_datasheet_has_no_share_of_it(tmp_path: Path) -> None:
    found = made("gpu-utilisation", tmp_path, device="Some GPU")
    assert found["tables"][0]["rows"][0][5:] == ["unknown", "unknown"]
    assert "decode_mfu" not in owns(found)


def test_the_newest_report_that_has_all_sections_answers(tmp_path: Path) -> None:
    assert committed_checks(tmp_path) == {}
    write(tmp_path, "gpu-b.json", report(utc="2026-11-25T00:00:00Z"))
    newest = report(utc="2026-11-27T00:00:00Z")
    newest["sections"]["decode"]["status"] = "exit code 1"
    write(tmp_path, "gpu-a.json", newest)
    write(tmp_path, "other.json", {})
    assert {row.name: check.name for row, check in committed_checks(tmp_path).items()} == {
        "sampling-on-gpu": "gpu-a.json",
        "gpu-utilisation": "gpu-b.json",
    }


def test_a_row_of_a_gpu_asks_the_check_for_its_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    wanted = "import sys; assert sys.argv[1:3] == ['--only', 'decode,prefill']"
    (scripts / "gpu_check.py").write_text(f"{wanted}; open(sys.argv[4], 'w').write({json.dumps(report())!r})")
    monkeypatch.setattr(gpu_checks, "_ROOT", tmp_path)
    found = measure_row(find_row("gpu-utilisation"), RowConditions())
    assert found["environment"]["gpu"] == ENVIRONMENT["device"]
    assert found["environment"]["file"] == "", "no committed one"
    (scripts / "gpu_check.py").write_text("raise SystemExit(2)")
    with pytest.raises(RuntimeError, match="ended with 2"):
        run_check(("decode",))


def test_datasheets_are_of_different_gpus() -> None:
    names = [device.cuda_name for device in devices().values()]
    assert len(set(names)) == len(names)
