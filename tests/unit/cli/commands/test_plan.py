"""``stratos plan``: what it prints, in text and in JSON, and how it refuses."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from scripts.docs.plan_examples import DOCUMENTS, with_output
from stratos.cli import main
from stratos.cli.commands.plan import group
from stratos.cli.main import app
from tests.support.paths import ROOT

COMMANDS = ("kv", "memory", "batch", "gpu", "replicas", "cost", "breakeven", "lora", "tier", "fleet", "claims")


def plan(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["plan", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def values(answer: dict[str, Any]) -> dict[str, float]:
    return {step["name"]: step["value"] for step in answer["figures"]}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_examples_of_the_documents_print_what_stands_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "```console\n$ stratos plan" in text
    assert with_output(text) == text, "run python -m scripts.docs.plan_examples"


def test_json_has_formulas_values_tables_and_published_answers() -> None:
    answer = plan("memory", "--model", "llama-2-13b", "--device", "a100-80", "--batch", "16")
    assert values(answer)["token_bytes"] == 819_200
    assert next(s for s in answer["figures"] if s["name"] == "kv_bytes")["formula"] == "batch * sequence_bytes"
    assert [row["seq_len"] for row in answer["tables"][0]["rows"]] == [4096, 8192, 16384]
    assert {one["claim"] for one in answer["published"]} == {"4.2"}


def test_a_measured_sweep_is_read_and_a_wrong_one_refused(tmp_path: Path) -> None:
    bench, wrong = tmp_path / "bench.json", tmp_path / "wrong.json"
    bench.write_text(json.dumps([{"max_concurrent_requests": 8, "output_throughput": 900.5}]))
    wrong.write_text(json.dumps([{"streams": 8}]))
    flags = ("--model", "llama-3.1-8b", "--memory-gb", "64", "--bandwidth-gb-s", "29", "--tflops", "0.36")
    rows = plan("batch", *flags, "--measured", str(bench))["tables"][0]["rows"]
    assert {row["rows"]: row["measured_tokens_per_s"] for row in rows}[8] == 900.5
    for path in (wrong, tmp_path / "absent.json"):
        done = CliRunner().invoke(app, ["plan", "batch", *flags, "--measured", str(path)])
        assert (done.exit_code, "--measured" in done.output) == (1, True)


@pytest.mark.parametrize(
    "changes",
    [{"arrivals": "poisson:3"}, {"client": {"is_valid": False}}, {"max_concurrent_requests": 0},
     {"output_throughput": float("nan")}],
    ids=str,
)  # fmt: skip
def test_a_run_that_measured_no_batch_does_not_stand_beside_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    bench, row = tmp_path / "bench.json", {"max_concurrent_requests": 8, "output_throughput": 900.5}
    bench.write_text(json.dumps([row | {"arrivals": "closed:8", "client": {"is_valid": True}} | changes]))
    flags = ("--model", "llama-3.1-8b", "--device", "h100", "--measured", str(bench))
    done = CliRunner().invoke(app, ["plan", "batch", *flags])
    assert (done.exit_code, "--measured" in done.output) == (1, True)


def test_lists_of_flags_reach_the_calculators() -> None:
    sizes = ("--size", "7=0.1", "--size", "70=1", "--task", "chat=1:0.8", "--measured", "7=0.5", "--measured", "70=0.8")
    assert values(plan("tier", *sizes))["blended_usd_per_million"] == 1
    parts = ("--region", "all=1:0", "--mix", "13b=1:340", "--usd-per-hour", "2")
    assert values(plan("fleet", *parts))["usd_per_hour"] == 2
    lora = plan("lora", "--model", "llama-2-7b", "--replica-requests-per-s", "9", "--device", "h100")
    assert values(lora)["usd_per_hour"] == 3
    assert len(plan("claims")["published"]) == 13
    own = ("--requests-per-s", "9", "--api-output-usd", "9", "--device", "h100", "--prices", "published-1")
    assert values(plan("breakeven", *own))["own_usd_per_month"] == 2.5 * 720


def test_other_commands_do_not_import_the_calculators() -> None:
    assert [name for name in imports(main) if ".plan" in name] == ["stratos.cli.commands.plan.group"]
    assert [name for name in imports(group) if name.startswith("stratos")] == ["stratos.cli.commands.on_demand"]


def imports(module: ModuleType) -> list[str]:
    """Modules that it imports when it is imported."""
    body = ast.parse(inspect.getsource(module)).body
    return [node.module or "" for node in body if isinstance(node, ast.ImportFrom)]


def test_every_command_is_there_and_says_what_it_does() -> None:
    done = CliRunner().invoke(app, ["plan", "--help"])
    assert [name for name in COMMANDS if name not in done.output] == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["kv"], "--model"),
        (["kv", "--model", "llama-9"], "llama-9"),
        (["kv", "--model", "llama-2-7b", "--seq-len", "0"], "seq_len must be above 0, not 0"),
        (["memory", "--model", "llama-2-7b", "--device", "h300"], "h300"),
        (["cost", "--usd-per-hour", "2"], "output_tokens_per_s"),
        (["cost", "--output-tokens-per-s", "9", "--device", "l4"], "--usd-per-hour"),
        (["tier", "--size", "7", "--size", "large"], "'large' is not a number"),
        (["tier", "--size", "7", "--size", "13", "--task", "chat=1"], "--task chat=1: it must be NAME=NUMBER:NUMBER"),
        (["fleet", "--usd-per-hour", "2"], "--region"),
    ],
)
def test_a_refusal_is_one_line_that_names_the_value(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(app, ["plan", *arguments])
    assert done.exit_code == 1
    assert text in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_a_file_of_an_evaluation_decides_which_tasks_a_size_takes(tmp_path: Path) -> None:
    losses = [
        {"stratum": f"text: {name}", "measure": "likeliest token", "reference": 0.5, "candidate": candidate}
        for name, candidate in (("chat", 0.3), ("code", 0.49))
    ]
    path, wrong = tmp_path / "evaluation.json", tmp_path / "wrong.json"
    path.write_text(json.dumps({"losses": losses}))
    wrong.write_text(json.dumps({"losses": []}))
    flags = ("--size", "13", "--size", "70", "--task", "chat=0.6:0.85", "--task", "code=0.4:0.95")
    chosen = {row["task"]: row for row in plan("tier", *flags, "--evaluation", f"13={path}")["tables"][1]["rows"]}
    assert {task: row["billions"] for task, row in chosen.items()} == {"chat": 70, "code": 13}
    assert (chosen["code"]["kept_quality"], chosen["code"]["least_success_share"]) == (0.98, 13 / 70)
    law = {row["task"]: row["billions"] for row in plan("tier", *flags)["tables"][1]["rows"]}
    assert law == {"chat": 13, "code": 70}
    losses[0]["candidate"] = float("nan")
    (tmp_path / "no-number.json").write_text(json.dumps({"losses": losses}))
    for text in (f"13={wrong}", f"13={tmp_path / 'absent.json'}", f"x={path}", f"13={tmp_path / 'no-number.json'}"):
        done = CliRunner().invoke(app, ["plan", "tier", *flags, "--evaluation", text])
        assert (done.exit_code, "--evaluation" in done.output) == (1, True)
