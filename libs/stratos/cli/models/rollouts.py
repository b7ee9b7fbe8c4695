"""Roll-outs from the command line: texts are checked here, before anything is asked, and told in lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import BadRequest
from stratos.rpc.clients.admin import AdminClient
from stratos.store.models.rollout_forms import parsed_gates, parsed_span_s, parsed_steps

DEFAULTS = {"steps": "10,50,100", "hold": "5m", "gates": "errors=0.5%"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutAsk:
    """Options that a person has written; raises ``BadRequest`` for what cannot be, or what does not go together."""

    name: str
    to: str
    """First digits of the revision; empty starts nothing."""
    given: Mapping[str, str]
    """Texts by field; empty where nothing was written."""
    min_requests: int | None
    verbs: Mapping[str, bool]
    """``pause``, ``resume`` and ``abort``, and whether each was asked for."""

    def __post_init__(self) -> None:
        asked = [f"--{verb}" for verb, is_asked in self.verbs.items() if is_asked]
        if len(asked) + bool(self.to) > 1:
            raise BadRequest(f"one at a time: {', '.join([*(['--to'] if self.to else []), *asked])}", param="--to")
        extra = [name for name, text in self.given.items() if text]
        if not self.to and (extra or self.min_requests is not None):
            raise BadRequest("name the revision that is to be rolled out", param="--to")
        if self.to:
            self.body()

    @property
    def verb(self) -> str:
        """Change of a roll-out that runs; empty for none."""
        return next((verb for verb, is_asked in self.verbs.items() if is_asked), "")

    def body(self) -> dict[str, Any]:
        """The start as the admin API takes it."""
        texts = {name: self.given.get(name) or text for name, text in DEFAULTS.items()}
        more: dict[str, Any] = {"sticky": self.given["sticky"]} if self.given.get("sticky") else {}
        if self.min_requests is not None:
            more["min_requests"] = self.min_requests
        return {
            "to": self.to,
            "steps": parsed_steps(texts["steps"]),
            "hold_s": parsed_span_s(texts["hold"], "hold"),
            "gates": parsed_gates(texts["gates"]),
            **more,
        }


def call_rollout(client: AdminClient, ask: RolloutAsk) -> dict[str, Any]:
    """Start, change or show a roll-out; returns how it stands. Raises ``StratosError``."""
    path = f"/rollouts/{ask.name}"
    if ask.to:
        return client.call("PUT", path, ask.body())
    if ask.verb:
        return client.call("POST", f"{path}/{ask.verb}")
    return client.call("GET", path)


def rollout_text(row: Mapping[str, Any]) -> str:
    """A roll-out for people: how it stands, and what its gates say, where they were asked."""
    head = (
        f"{row['model']:<24} {row['old'][:12]} -> {row['new'][:12]}  {row['phase']} at {row['percent']} % "
        f"(steps {', '.join(map(str, row['steps']))}; hold {row['hold_s']:g} s)"
    )
    if not row.get("is_applied", True):
        head += "  (weights not written yet)"
    told = [f"  {text}" for text in (row["reason"], *row.get("notes", ())) if text]
    told += [f"  {verdict['outcome']:<14} {verdict['text']}" for verdict in row.get("verdicts", ())]
    return "\n".join([head, *told])
