"""One model, served by vLLM's CPU build or by a platform of ours."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.peer_servers import VLLM_ENV, running_server
from scripts.bench.terms import apply_terms
from scripts.vllm_suite.installation import python_of
from stratos.cli.local.ports import any_free_port
from stratos.reproduce.load.local_platform import running_platform

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = 8192
"""Of most of the tests' own servers; twice what the shipped model was trained with."""
MOST_TOKENS = 512
"""Of an answer whose request names none, as our models have it: the shipped model rarely ends by itself."""
TEMPLATE = """\
{%- if enable_thinking is defined and enable_thinking %}<|system|>
Think first.<|end|>
{% endif -%}
{%- if tools %}<|system|>
Call a function by <tool_call>
{"name": NAME, "arguments": ARGUMENTS}
</tool_call>. Functions: {{ tools | tojson }}<|end|>
{% endif -%}
{%- for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>
{% if m.role == 'tool' %}<tool_response>
{% endif %}{{ m.content or '' }}{% for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>
{% endfor -%}
{%- if add_generation_prompt %}<|assistant|>
{% endif -%}
"""
"""The shipped model's form with calls as of Hermes, which both sides can find and enforce."""


@dataclass(frozen=True, slots=True)
class SuiteServer:
    """What the tests are pointed at."""

    name: str
    url: str
    key: str


def make_model(folder: Path) -> Path:
    """The shipped model with a chat template that knows tools, below a folder."""
    path = folder / "base"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(ROOT / "models" / "base", path)
    (path / "known_digests.json").unlink()
    (path / "chat_template.jinja").write_text(TEMPLATE)
    _change(path / "tokenizer_config.json", {"chat_template": TEMPLATE, "model_max_length": CONTEXT})
    _change(path / "config.json", {"max_position_embeddings": CONTEXT})
    return path


def _change(path: Path, fields: dict[str, object]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@contextmanager
def vllm_server(folder: Path, model: Path) -> Iterator[SuiteServer]:
    """vLLM's CPU build with the arguments that most of its own tests start it with."""
    port = any_free_port()
    command = [
        str(python_of(folder).with_name("vllm")), "serve", str(model), "--served-model-name", "base",
        "--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(CONTEXT), "--max-num-seqs", "32",
        "--enforce-eager", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
        "--enable-tokenizer-info-endpoint", "--override-generation-config", json.dumps({"max_new_tokens": MOST_TOKENS}),
    ]  # fmt: skip
    env = {**VLLM_ENV, "VLLM_ENABLE_RESPONSES_API_STORE": "1", "VLLM_SERVER_DEV_MODE": "1"}
    with running_server(command, env, f"http://127.0.0.1:{port}/health", folder / "vllm.log"):
        yield SuiteServer(f"vLLM on CPU, {folder.name}", f"http://127.0.0.1:{port}", "none")


@contextmanager
def our_platform(model: Path) -> Iterator[SuiteServer]:
    """``stratos up``, where responses are stored without being asked, as by the tests' own server, and prompts may be
    as long as there."""
    env = {
        "STRATOS_GATEWAY_RESPONSES__STORE_BY_DEFAULT": "true", "STRATOS_GATEWAY_MODEL__MAX_INPUT_TOKENS": str(CONTEXT),
    }  # fmt: skip
    ports = ("--port", str(any_free_port()), "--admin-port", str(any_free_port()))
    with running_platform("--model", f"base={model}", *ports, env=env) as platform:
        more = {"plan": "local", "overrides": {"max_prompt_tokens": CONTEXT}}
        apply_terms(Path(platform.data_dir), {"tenants": {"default": more}})
        yield SuiteServer("StratosServe", platform.url.removesuffix("/v1"), platform.key)
