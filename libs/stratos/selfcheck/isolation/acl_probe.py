"""Models and adapters: what is outside an ACL must answer exactly as a name that there is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stratos.selfcheck.findings import Finding, judged
from stratos.selfcheck.isolation.callers import ProbeCaller
from stratos.selfcheck.isolation.probe_tenants import Probes

UNKNOWN = "isolation-unknown-model"


def probe_acl(probes: Probes, names: Sequence[str], private: Sequence[str]) -> Finding:
    """Every bound caller with every name on every route.

    Args:
        probes: callers.
        names: that tenant one may use.
        private: names of other tenants' adapters, which no probe may see.
    """
    bound = {"by its plan": (probes.plan_bound, names), "by its key": (probes.key_bound, names)}
    if private:
        bound["as another tenant"] = (probes.one, private)
    problems, num = [], 0
    for why, (caller, hidden) in bound.items():
        listed = {str(model["id"]) for model in caller.models()}
        problems += [f"a key that is bound {why} lists {name!r}" for name in hidden if name in listed]
        for name in hidden:
            found = list(differences(caller, name))
            num += len(list(requests_for(name)))
            problems += [f"{path}: {name!r} is not like unknown, {why}" for path in found]
    return judged("models, ACL matrix", problems, f"{num} requests for hidden names are like those for unknown ones")


def requests_for(name: str) -> Iterator[tuple[str, str, Any]]:
    """Every way to ask for a name."""
    chat = {"model": name, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    yield "POST", "/v1/completions", {"model": name, "prompt": "x", "max_tokens": 1}
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"):
        yield "POST", path, chat
    yield "POST", "/v1/responses", {"model": name, "input": "x", "max_output_tokens": 1}
    yield "POST", "/v1/embeddings", {"model": name, "input": "x"}
    yield "POST", "/tokenize", {"model": name, "prompt": "x"}
    yield "POST", "/detokenize", {"model": name, "tokens": [5]}
    yield "GET", f"/v1/models/{name}", None


def differences(caller: ProbeCaller, name: str) -> Iterator[str]:
    """Routes on which a name looks other than one that there is not."""
    for (method, path, body), (_, unknown_path, unknown_body) in zip(
        requests_for(name), requests_for(UNKNOWN), strict=True
    ):
        shape = caller.shape(method, path, body, name)
        if shape.status < 400 or shape != caller.shape(method, unknown_path, unknown_body, UNKNOWN):
            yield path
