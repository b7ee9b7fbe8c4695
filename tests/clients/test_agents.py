"""Coding agents as their makers ship them: whole sessions with tools, their own prompts uncut.

The engine is scripted and answers as a large model would, with a context of 128 K tokens; ``make test-clients``
installs the agents.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stratos.api.worker.v1 import decode_pb2
from tests.support.paths import ROOT
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.worlds.gateway_keys import KEY
from tests.support.worlds.gateway_world import END_ID, World, gateway_world

AGENTS = ROOT / ".agents" / "node_modules" / ".bin"
CONTEXT = 131_072
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC"
)
pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    model = {"max_stream_len": CONTEXT, "max_input_tokens": CONTEXT, "default_max_tokens": 4096}
    async with gateway_world(model=model) as made:
        made.keys.change_plan(KEY, max_prompt_tokens=CONTEXT)
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the agent works."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").write_text("remember the milk\n", encoding="utf-8")
    (work / "pixel.png").write_bytes(PIXEL)
    return work


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def play(world: World, turns: Sequence[str], helper: str, offer: str) -> list[str]:
    """Answer with the turn that is due by the results so far, and as a helper where ``offer`` is not in the prompt.

    Returns:
        The prompts, as they come.
    """
    tokenizer, prompts = shipped_tokenizer(), list[str]()

    def script(submit: decode_pb2.Submit, choice: int) -> list[int]:
        prompt = tokenizer.decode(list(submit.prompt_ids))
        prompts.append(prompt)
        due = turns[min(prompt.count("<tool_response>"), len(turns) - 1)] if offer in prompt else helper
        return [*tokenizer.encode_plain(due), END_ID]

    world.worker.script = script
    return prompts


async def run(program: str, *arguments: str, folder: Path, env: dict[str, str]) -> str:
    """What an agent writes, which must end well."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        AGENTS / program, *arguments, cwd=folder, env={**os.environ, "HOME": str(home), **env},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


def answered(world: World) -> dict[tuple[str, str], float]:
    """Answers by route and status."""
    samples = [
        s for f in world.service.metrics.restricted_registry(["stratos_requests_total"]).collect() for s in f.samples
    ]
    return {(s.labels["route"], s.labels["status"]): s.value for s in samples if s.name == "stratos_requests_total"}


def refused(world: World) -> dict[tuple[str, str], float]:
    """Those that were no success."""
    return {key: number for key, number in answered(world).items() if key[1] >= "4"}


@pytest.mark.parametrize("has_sockets", [False, True], ids=["streams", "sockets"])
async def test_codex_works_through_a_session(world: World, folder: Path, has_sockets: bool) -> None:
    turns = [
        call("exec_command", cmd="cat notes.txt"),
        "I look at the picture.\n" + call("view_image", path=str(folder / "pixel.png")),
        call("multi_agent_v1__spawn_agent", message="say hi"),
        call("exec_command", cmd="cat gone.txt; exit 3") + "\n" + call("exec_command", cmd="echo twice"),
        "unused",
        "The notes say: remember the milk.",
    ]
    prompts = play(world, turns, "I am a helper.", "multi_agent_v1__spawn_agent")
    config = {
        "model": "base",
        "model_provider": "stratos",
        "model_context_window": CONTEXT,
        "model_providers.stratos.name": "stratos",
        "model_providers.stratos.base_url": f"http://{world.service.http_address}/v1",
        "model_providers.stratos.env_key": "STRATOS_KEY",
        "model_providers.stratos.wire_api": "responses",
        "model_providers.stratos.request_max_retries": 0,
        "model_providers.stratos.stream_max_retries": 0,
        "model_providers.stratos.supports_websockets": has_sockets,
    }
    options = [f"-c{name}={json.dumps(value)}" for name, value in config.items()]
    output = await run(
        "codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", *options,
        "What do my notes say?", folder=folder, env={"STRATOS_KEY": KEY, "CODEX_HOME": str(folder.parent / "home")},
    )  # fmt: skip
    assert "The notes say: remember the milk." in output
    assert "You are a coding agent running in the Codex CLI" in prompts[0]
    last = prompts[-1]
    assert "remember the milk" in last.split("<tool_response>")[1]
    assert "[image left out: this model reads text alone]" in last
    assert "twice" in last
    assert any("say hi" in prompt and "multi_agent_v1__spawn_agent" not in prompt for prompt in prompts)
    assert refused(world) == {}
    assert (("/v1/responses", "101") in answered(world)) is has_sockets


async def test_claude_code_works_through_a_session(world: World, folder: Path) -> None:
    turns = [
        "I read them.\n" + call("Read", file_path=str(folder / "notes.txt")),
        call("Read", file_path=str(folder / "pixel.png")),
        call("Agent", description="greet", prompt="say hi", subagent_type="general-purpose"),
        call("Bash", command="exit 3", description="fail") + "\n" + call("NoSuchTool", a=1),
        "unused",
        "The notes say: remember the milk.",
    ]
    prompts = play(world, turns, "I am a helper.", '"name": "Agent"')
    env = {
        "ANTHROPIC_BASE_URL": f"http://{world.service.http_address}",
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "ANTHROPIC_MODEL": "base",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "base",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    output = await run(
        "claude", "-p", "What do my notes say?", "--output-format", "stream-json", "--verbose",
        "--allowedTools", "Bash", "Read", folder=folder, env=env,
    )  # fmt: skip
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    result = events[-1]
    assert (result["type"], result["is_error"], result["result"]) == ("result", False, turns[-1])
    used = [
        part["name"] for e in events if e["type"] == "assistant" for part in e["message"]["content"] if "name" in part
    ]
    assert {"Read", "Agent", "Bash", "NoSuchTool"} <= set(used)
    last = prompts[-1]
    assert "remember the milk" in last.split("<tool_response>")[1]
    assert "[image left out: this model reads text alone]" in last
    assert "Exit code 3" in last
    assert refused(world) == {}
