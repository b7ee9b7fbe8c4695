"""The whole platform over the shipped models, as `make run` serves them: answers, calls, adapters, recovery."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from typer.testing import CliRunner

from stratos.cli.main import app
from tests.support.paths import BASE_MODEL, MODELS, ROOT
from tests.support.servers import warm_process
from tests.support.tool_dialects import DIALECTS, Dialect
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.platform_process import PlatformProcess, running_platform

BASE = BASE_MODEL
PROMPT = "def read_lines(path):\n    with open(path, encoding='utf-8') as file:\n        return "
NUM_LONG = 200
WATERMARK_KEY = "a key for one tenant's output"
EXAMPLES = ROOT / "examples"
SHIPPED = ("--model", str(BASE), "--model", str(MODELS / "tools"), "--workers", "tools=0+1:96MiB")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    env = {
        "STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_SEQS": "3",
        "STRATOS_AUTOSCALER_POLL_INTERVAL_S": "0.2",
        "STRATOS_AUTOSCALER_PLANNER__DOWN_UTILISATION": "0.75",
        "STRATOS_AUTOSCALER_PLANNER__QUIET_S": "1",
        # Else the slow first tokens of the burst keep it from being quiet for the minute that gateways tell of them.
        "STRATOS_AUTOSCALER_PLANNER__UP_TTFT_S": "60",
        "STRATOS_AUTOSCALER_PLANNER__DOWN_TTFT_S": "30",
        "STRATOS_AUTOSCALER_PLANNER__COOLDOWN_UP_S": "0.5",
        "STRATOS_AUTOSCALER_PLANNER__COOLDOWN_DOWN_S": "0.5",
        "STRATOS_GATEWAY_WATERMARK__KEY": WATERMARK_KEY,
        "STRATOS_GATEWAY_WATERMARK__TENANTS": '["marked"]',
    }
    folder = tmp_path_factory.mktemp("platform")
    with running_platform(folder, *SHIPPED, "--max-decode", "2", env=env) as running:
        yield running


@pytest.fixture(scope="module")
def client(platform: PlatformProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=platform.base_url, api_key=platform.api_key, max_retries=0, timeout=LIMIT_S)


def complete(client: openai.OpenAI, num_tokens: int, model: str = "base") -> str:
    answer = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=num_tokens, temperature=0, extra_body={"ignore_eos": True}
    )
    return answer.choices[0].text


def stream(client: openai.OpenAI, num_tokens: int) -> Iterator[str]:
    for chunk in client.completions.create(
        model="base", prompt=PROMPT, max_tokens=num_tokens, temperature=0, stream=True, extra_body={"ignore_eos": True}
    ):
        if chunk.choices:
            yield chunk.choices[0].text


@pytest.fixture(scope="module")
def undisturbed(client: openai.OpenAI) -> str:
    return complete(client, NUM_LONG)


@pytest.mark.slow
def test_curl_and_snippet_work_when_pasted(platform: PlatformProcess) -> None:
    (line,) = [line for line in platform.lines if line.startswith("curl ")]
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    events = [event for event in done.stdout.split("\n\n") if event]
    assert events[-1] == "data: [DONE]"
    assert len(events) > 3
    start = platform.output.index("from openai import OpenAI")
    code = platform.output[start : platform.output.index("\n\nIn another terminal")]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("example", sorted(p.name for p in EXAMPLES.iterdir() if p.suffix in (".py", ".sh")))
def test_examples_run(platform: PlatformProcess, example: str) -> None:
    program, env = str(EXAMPLES / example), {**os.environ, "BASE_URL": platform.base_url, "API_KEY": platform.api_key}
    if example.endswith(".py"):
        done = warm_process.run(program, env=env)
    else:
        done = subprocess.run(["bash", program], env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path.strip("/"))
def test_the_tool_model_calls_by_itself_in_every_dialect(
    platform: PlatformProcess, dialect: Dialect, is_streamed: bool
) -> None:
    with httpx.Client(base_url=platform.base_url, timeout=LIMIT_S, trust_env=False) as http:
        http.headers["authorization"] = f"Bearer {platform.api_key}"
        talk = dialect.conversation(http, is_streamed=is_streamed)
        talk.say("What is the weather in Paris?")
        assert talk.ask().calls == [("get_weather", {"city": "Paris"})]
        talk.give("sunny, 20 degrees")
        told = talk.ask()
        assert (told.calls, "sunny, 20 degrees" in told.text) == ([], True), told
        talk.say("Thanks")
        assert talk.ask().calls == []


def test_the_chat_of_a_terminal_shows_calls_of_the_tool_model_and_goes_on_with_results(
    platform: PlatformProcess, tmp_path: Path
) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"name": "get_weather", "description": "Weather of a city", "parameters": parameters}
    (tmp_path / "tools.json").write_text(json.dumps([tool]), encoding="utf-8")
    given = ["chat", "--model", "tools", "--tools", str(tmp_path / "tools.json"), "--data-dir", str(platform.data_dir)]
    given += ["--temperature", "0"]
    told = CliRunner().invoke(app, given, input="What is the weather in Paris?\nsunny, 20 degrees\n/exit\n")
    assert told.exit_code == 0, told.output
    assert '[call] get_weather {"city": "Paris"}' in told.output
    asked, _, answer = told.output.partition("result of get_weather> ")
    assert "[reasoning]" in asked
    assert "sunny, 20 degrees" in answer


def test_the_output_of_one_tenant_is_marked_and_detected(
    platform: PlatformProcess, client: openai.OpenAI, tmp_path: Path
) -> None:
    key = re.search(r"sk-[0-9a-f-]+", platform.stratos("keys", "create", "--tenant", "marked").stdout)
    assert key is not None
    marked, verdicts = openai.OpenAI(base_url=platform.base_url, api_key=key[0], max_retries=0, timeout=LIMIT_S), []
    (tmp_path / "key").write_text(WATERMARK_KEY)
    for sender in (marked, client):
        answer = sender.completions.create(
            model="base", prompt=PROMPT, max_tokens=250, seed=11, extra_body={"ignore_eos": True}
        )
        (tmp_path / "text").write_text(answer.choices[0].text, encoding="utf-8")
        command = [
            "watermark",
            "detect",
            str(tmp_path / "text"),
            "--model",
            str(BASE),
            "--key-file",
            str(tmp_path / "key"),
        ]
        verdicts.append(json.loads(CliRunner().invoke(app, command).stdout))
    assert [verdict["is_marked"] for verdict in verdicts] == [True, False], verdicts


def test_the_shipped_adapters_are_models_with_their_own_answers(client: openai.OpenAI) -> None:
    models = {model.id: model for model in client.models.list()}
    tools = models.pop("tools").model_dump()
    assert (tools["call_syntax"], tools["reasoning_tags"]) == ("hermes", ["<think>", "</think>"])
    adapters = {name for name in models if name != "base"}
    assert adapters == {"c-headers", "reference-prose", "unit-tests"}
    assert {models[name].parent for name in adapters} == {"base"}
    answers = {name: complete(client, 24, name) for name in models}
    assert len(set(answers.values())) == len(models), answers


def test_a_long_prompt_was_computed_in_the_prefill_worker(platform: PlatformProcess, client: openai.OpenAI) -> None:
    def steps() -> dict[str, int]:
        return {w["worker_id"]: w["engine_step"] for w in platform.status()["workers"]}

    before = steps()
    client.completions.create(model="base", prompt="import os\nimport sys\n" * 40, max_tokens=1, temperature=0)
    wait_until(lambda: steps()["prefill-0"] > before["prefill-0"], what="a step of the prefill worker")


def test_a_stream_survives_the_death_of_the_only_decode_worker(
    platform: PlatformProcess, client: openai.OpenAI, undisturbed: str
) -> None:
    # Earlier tests may have brought a second one, and which of the two leaves again is the autoscaler's choice.
    wait_until(lambda: len(decode_workers(platform)) == 1, what="one decode worker")
    (name,) = decode_workers(platform)
    before = platform.processes()[name]
    received = ""
    for piece in stream(client, NUM_LONG):
        if not received:
            os.kill(before["pid"], signal.SIGKILL)
        received += piece
    assert received == undisturbed
    # Another pool may have finished the answer before the worker's end was noticed.
    wait_until(lambda: platform.is_back(before), what="the restarted worker")


def test_load_adds_a_decode_worker_and_quiet_drains_it_without_cutting_a_stream(
    platform: PlatformProcess, client: openai.OpenAI, undisturbed: str
) -> None:
    # A decode worker runs 3 streams (see the fixture): ten at once must bring a second one. Two go on at all times, so
    # the one that leaves when the others have ended has a stream to finish or to hand over.
    wait_until(lambda: len(decode_workers(platform)) == 1, what="one decode worker")
    is_over = threading.Event()

    def answers_until_over() -> set[str]:
        answers = {"".join(stream(client, NUM_LONG))}
        while not is_over.is_set():
            answers.add("".join(stream(client, NUM_LONG)))
        return answers

    with ThreadPoolExecutor(10) as pool:  # a thread per stream
        steady = [pool.submit(answers_until_over) for _ in range(2)]
        try:
            burst = [pool.submit(lambda: "".join(stream(client, NUM_LONG))) for _ in range(8)]
            wait_until(lambda: len(decode_workers(platform)) == 2, what="a second decode worker")
            assert {answer.result() for answer in burst} == {undisturbed}
            wait_until(lambda: len(decode_workers(platform)) == 1, what="a worker that leaves")
        finally:
            is_over.set()
        assert set.union(*(answers.result() for answers in steady)) == {undisturbed}
    # Those that went on may have filled the one that stayed when they moved to it: then another one comes and goes.
    wait_until(lambda: list(decode_workers(platform).values()) == ["serving"], what="one decode worker that serves")
    wait_until(
        lambda: sum(w["worker_id"] in decode_workers(platform) for w in platform.status()["workers"]) == 1,
        what="a router that knows of it",
    )


def decode_workers(platform: PlatformProcess) -> dict[str, str]:
    return {name: p["state"] for name, p in platform.processes().items() if re.fullmatch(r"decode-\d+", name)}
