"""Banner of ``stratos up`` once the platform answers: the address first, then lines that work when pasted."""

from __future__ import annotations

import json

from stratos.cli.data.platform_facts import PlatformFacts
from stratos.cli.local.options import UpOptions

PROMPT = "Write the function read_lines. Return a list of all lines of a file."


def banner(facts: PlatformFacts, options: UpOptions) -> str:
    """The text; its first URL is the base URL that all gateways serve."""
    models = ", ".join((facts.model, *(more.model_name for more in options.more_models), *facts.adapters))
    return f"""
StratosServe is up: {_processes(options)}

  Base URL   {facts.base_url}
  API key    {facts.api_key}
  Models     {models}
  Admin API  {facts.admin_url}/admin/v1, with a key of `stratos keys create --tenant platform --role admin`
{_prometheus(facts)}
Stream a completion with curl:

{curl_line(facts)}

or with the OpenAI SDK (python):

{sdk_snippet(facts)}

In another terminal: `stratos chat`, `stratos status` (both in .venv/bin). Ctrl-C here stops everything.
"""


def _prometheus(facts: PlatformFacts) -> str:
    return f"  Prometheus {facts.prometheus_url} (metrics, rules, alerts)\n" if facts.prometheus_url else ""


def _processes(options: UpOptions) -> str:
    models = (options, *options.more_models)
    counts = {
        "gateway": options.gateways,
        "router": options.routers,
        "prefill worker": sum(model.prefill for model in models),
        "decode worker": sum(model.decode for model in models),
    }
    text = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items())
    return f"{text}, for {len(models)} models" if options.more_models else text


def curl_line(facts: PlatformFacts) -> str:
    """One line for a shell."""
    body = {
        "model": facts.model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 64,
        "stream": True,
    }
    return (
        f"curl -N {facts.base_url}/chat/completions -H 'Authorization: Bearer {facts.api_key}' "
        f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    )


def sdk_snippet(facts: PlatformFacts) -> str:
    """A script for the official SDK."""
    return f"""from openai import OpenAI

client = OpenAI(base_url={json.dumps(facts.base_url)}, api_key={json.dumps(facts.api_key)})
stream = client.chat.completions.create(
    model={json.dumps(facts.model)},
    messages=[{{"role": "user", "content": {json.dumps(PROMPT)}}}],
    max_tokens=64,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)"""
