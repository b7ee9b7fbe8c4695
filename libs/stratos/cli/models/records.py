"""Adds a model to a platform: its words go into the object store, its record through the admin API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stratos.cli.data.digests import remembered_digest
from stratos.common.errors import BadRequest
from stratos.core.files.handed_digest import digest_in
from stratos.rpc.clients.admin import AdminClient
from stratos.store.models.alias_forms import pinned
from stratos.store.models.alias_record import WHOLE
from stratos.store.models.texts import put_texts
from stratos.store.registry.catalogue import PublishedModel
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import opened_store

POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAsk:
    """A model that is to be added."""

    name: str
    folder: Path
    """Model folder; a GGUF file has one by now."""
    digest: str = ""
    """SHA-256 (hex) of configuration and weights; empty computes it, for which the weights must be there."""
    digests_file: Path
    """Remembers digests of folders that were read before."""
    store: ObjectStoreConfig
    """The one that the gateways have."""
    published: PublishedModel | None = None
    """A model from the registry, whose words are there since it was published."""
    terms: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its record; those that lack are as its name has them already."""


def add_model(client: AdminClient, ask: ModelAsk) -> dict[str, Any]:
    """Store what gateways read of a model, then record it; returns the record.

    Raises:
        StratosError: the folder is no model, a store does not answer, or the platform refuses the record.
    """
    if (one := ask.published) is not None:
        digests = {"digest": one.manifest.digest, "text_digest": one.manifest.text_digest}
        found = {**digests, "source": one.reference, "facts": asdict(one.manifest.facts)}
    else:
        digest = ask.digest or digest_in(remembered_digest(ask.folder, ask.digests_file))
        found = {"digest": digest, "text_digest": asyncio.run(_put(ask)), "source": str(ask.folder)}
    return client.call("POST", "/models", {"name": ask.name, **found, **ask.terms})


def wait_for_workers(client: AdminClient, digest: str, wait_s: float) -> bool:
    """Whether new requests get a revision, with workers that are live, within ``wait_s`` seconds.

    Where an alias splits the requests of its name, the alias says who gets it: live workers are enough.
    """
    until = time.monotonic() + wait_s
    while True:
        rows = client.call("GET", "/models")["data"]
        row = next((row for row in rows if row["digest"] == digest), None)
        if row is not None and row["live"] and (row["current"] or _is_split(rows, row["name"])):
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_S)


def row_text(row: Mapping[str, Any]) -> str:
    """One line of the list: what a person asks first."""
    workers, state = row["workers"], row["state"]
    counts = "no router answers" if workers is None else " + ".join(f"{n} {role}" for role, n in workers.items())
    if row.get("ready"):
        counts = f"ready {row['ready']}: {counts}"
    mark = "*" if row["current"] else " "
    reason = f"  {row['reason']}" if row.get("reason") else ""
    return f"{mark} {row['name']:<24} {row['digest'][:12]}  {state:<8} {row['from']:<9} {counts}{reason}"


def alias_text(alias: Mapping[str, Any]) -> str:
    """One line of the list of aliases."""
    told = [
        f"{target['model']}{'@' + target['digest'][:12] if target['digest'] else ''} {target['weight']}%"
        for target in alias["targets"]
    ]
    return f"{alias['name']:<24} {', '.join(told)}  ({alias['sticky']})"


def parsed_target(text: str, *, is_only: bool) -> dict[str, Any]:
    """The target that ``base``, ``base@3f9a12cd`` or ``base@3f9a12cd=90`` says.

    Raises:
        BadRequest: its weight is none, or is missing beside other targets.
    """
    name, has_weight, weight = text.partition("=")
    if not (weight.isascii() and weight.isdecimal()) and (has_weight or not is_only):
        raise BadRequest(f"{text!r}: write TARGET=PER_CENT, such as {name}=90", param="targets")
    pin = pinned(name)
    model, digest = (name, "") if pin is None else pin
    return {"model": model, "digest": digest, "weight": int(weight) if has_weight else WHOLE}


def _is_split(rows: Iterable[Mapping[str, Any]], name: str) -> bool:
    return any(name in row.get("aliases", ()) for row in rows)


async def _put(ask: ModelAsk) -> str:
    async with opened_store(ask.store) as store:
        return await put_texts(store, ask.folder)
