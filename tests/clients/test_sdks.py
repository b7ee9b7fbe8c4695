"""SDKs of other makers: every program of examples/sdk in an environment that ``make test-clients`` has made.

Each runs on a scripted engine that calls by itself, where the first request of the program is refused as by a full
platform and has to be sent again.  Some run on the shipped model, too: the others ask for JSON of which a model has to
find the end itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratos.api.worker.v1 import decode_pb2
from stratos.common.errors import Overloaded
from tests.support.paths import ROOT
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.worlds.gateway_keys import KEY
from tests.support.worlds.gateway_world import END_ID, World, gateway_world
from tests.support.worlds.platform_process import PlatformProcess, running_platform

ENVIRONMENTS = {"litellm_sdk": ".venv-clients-2", "openai_agents_sdk": ".venv-clients-2"}
"""Of the programs whose pins collide with those of the others."""
ON_SHIPPED_MODEL = ("anthropic_sdk", "llama_index_sdk", "pydantic_ai_sdk")
PROGRAMS = sorted((ROOT / "examples" / "sdk").glob("*.py"))
OFFLINE = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


def python(program: Path) -> Path:
    return ROOT / ENVIRONMENTS.get(program.stem, ".venv-clients") / "bin" / "python"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    with running_platform(tmp_path_factory.mktemp("platform")) as running:
        yield running


@pytest.mark.parametrize("name", ON_SHIPPED_MODEL)
def test_programs_of_sdks_run(platform: PlatformProcess, name: str) -> None:
    [program] = (path for path in PROGRAMS if path.stem == name)
    env = {**OFFLINE, "BASE_URL": platform.base_url, "API_KEY": platform.api_key}
    done = subprocess.run([python(program), program], env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


CITY = {"name": "Bern", "is_capital": True}
_TOLD = re.compile(r'"name": "(\w+)", "description"')


def answer(submit: decode_pb2.Submit, choice: int) -> list[int]:
    """A call of the first tool that has not been called, a city where a schema wants one, or a text."""
    tokenizer = shipped_tokenizer()
    prompt, kind = tokenizer.decode(list(submit.prompt_ids)), submit.sampling.grammar.kind
    tools = _TOLD.findall(prompt)
    text = "It is sunny."
    if kind == "json_schema":
        text = json.dumps(CITY)
    elif tools and "<tool_response>" not in prompt:
        arguments = {"city": "Bern"} if tools[0] == "get_weather" else CITY
        text = f"<tool_call>\n{json.dumps({'name': tools[0], 'arguments': arguments})}\n</tool_call>"
    return [*tokenizer.encode_plain(text), END_ID]


def answers_of(world: World, status: str) -> float:
    """Number of answers whose status begins like this."""
    found = world.service.metrics.restricted_registry(["stratos_requests_total"]).collect()
    return sum(s.value for f in found for s in f.samples if s.labels.get("status", "").startswith(status))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
async def test_programs_run_on_a_model_that_calls_and_send_again_what_was_refused(program: Path) -> None:
    async with gateway_world() as world:
        world.worker.script = answer
        world.router.errors = [Overloaded("no room", after_s=0.1)]
        env = {**OFFLINE, "BASE_URL": f"http://{world.service.http_address}/v1", "API_KEY": KEY}
        process = await asyncio.create_subprocess_exec(
            python(program), program, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        assert world.router.errors == []
        assert answers_of(world, "5") == 1, "the one that was refused first"
