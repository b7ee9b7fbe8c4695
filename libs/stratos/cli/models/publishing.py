"""Publishes a base model: tried first, then its chunks, then its manifest (``store.registry``)."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratos.cli.data.digests import remembered_digest
from stratos.cli.data.torch_module import run_module
from stratos.common.errors import BadRequest, InvalidCheckpoint
from stratos.core.files.model_files import CONFIG_NAME, read_json
from stratos.core.files.safetensors_header import ALL_BYTES, read_safetensors_header
from stratos.engine.checkpoint.model_config import parse_decoder_config
from stratos.engine.checkpoint.quantisation_config import weights_label
from stratos.store.models.model_record import ModelFacts
from stratos.store.registry.catalogue import PublishedModel, list_published, parse_reference
from stratos.store.registry.fetching import for_transfers
from stratos.store.registry.publishing import PublishAsk, publish, publish_again, published_names
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import opened_store

NUM_ATTEMPTS = 5
SKIP = "--no-first-token"
_LICENCE = re.compile(r"^license(?:_name)?:\s*[\"']?([^\"'\n]{1,80}?)[\"']?\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequest:
    """Wishes of an operator."""

    name: str
    folder: Path
    store: ObjectStoreConfig
    digests_file: Path
    licence: str = ""
    computes_token: bool = True
    repairs: bool = False
    say: Callable[[str], None] = print


def publish_model(asked: PublishRequest) -> PublishedModel:
    """Try a model folder, and publish it.

    Raises:
        StratosError: it cannot be served, or a store does not answer; nothing of it is visible then.
    """
    facts = facts_of(asked.folder, asked.licence)
    tried = try_folder(asked)
    token = tried.get("token")
    what = f"computed token {token}" if token is not None else "computed no token"
    asked.say(f"{asked.folder} is sound: {tried['num_tensors']} tensors, {what}")
    ask = PublishAsk(
        name=asked.name, folder=asked.folder, facts=facts, created_unix_s=int(time.time()), digest=tried["digest"],
        text_digest=tried["text_digest"], repairs=asked.repairs,
    )  # fmt: skip

    async def send() -> PublishedModel:
        async with opened_store(for_transfers(asked.store), num_attempts=NUM_ATTEMPTS) as store:
            return await publish(store, ask, Percents(asked.say))

    return asyncio.run(send())


def republish_model(name: str, reference: str, config: ObjectStoreConfig) -> PublishedModel:
    """Publish under a name what is published under another one; raises ``StratosError``."""

    async def send() -> PublishedModel:
        async with opened_store(for_transfers(config), num_attempts=NUM_ATTEMPTS) as store:
            return await publish_again(store, name, parse_reference(reference, "--from"))

    return asyncio.run(send())


def try_folder(asked: PublishRequest) -> Mapping[str, Any]:
    """Check a folder in a process of its own; raises ``InvalidCheckpoint`` where a worker could not serve it."""
    ask = {
        "folder": str(asked.folder.resolve()),
        "digest": remembered_digest(asked.folder, asked.digests_file),
        "computes_token": asked.computes_token,
    }
    report = run_module("stratos.quality.trial", ask, os.cpu_count() or 1)
    hint = f"; where memory lacks, {SKIP} leaves the loading of all weights out" if asked.computes_token else ""
    if report is None:
        raise InvalidCheckpoint(f"the process that tried {asked.folder} was ended{hint}")
    if "problem" in report:
        is_of_memory = "memory" in report["problem"]
        raise InvalidCheckpoint(f"{report['problem']}{hint if is_of_memory else ''}")
    return report


def facts_of(folder: Path, licence: str = "") -> ModelFacts:
    """Facts of a model folder, from its configuration and the headers of its weights.

    Raises:
        InvalidCheckpoint: it is none, or the engine does not serve it.
    """
    if not folder.is_dir():
        raise BadRequest(f"{folder} is not a folder; give the path of a Hugging Face model folder", param="--path")
    config = read_json(folder / CONFIG_NAME)
    model = parse_decoder_config(config)
    return ModelFacts(
        architecture=model.architecture,
        precision=weights_label(config, "auto") or _stored_type(folder),
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        num_experts=0 if model.moe is None else model.moe.num_experts,
        vocab_size=model.vocab_size,
        context_length=model.max_model_len,
        licence=licence or _stated_licence(folder),
        num_bytes=sum((folder / name).stat().st_size for name in published_names(folder)),
    )


def _stored_type(folder: Path) -> str:
    """Type that most bytes of the weights have."""
    sizes: dict[str, int] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for entry in read_safetensors_header(path, InvalidCheckpoint, ALL_BYTES).values():
            begin, end = entry["data_offsets"]
            sizes[entry["dtype"]] = sizes.get(entry["dtype"], 0) + end - begin
    if not sizes:
        raise InvalidCheckpoint(f"{folder} holds no *.safetensors file; only those are published, never a pickle")
    return max(sizes, key=lambda dtype: sizes[dtype])


def _stated_licence(folder: Path) -> str:
    """The licence that the head of the model's README says."""
    card = folder / "README.md"
    if not card.is_file():
        return ""
    with card.open(encoding="utf-8", errors="replace") as file:
        head = file.read(1 << 16)
    found = _LICENCE.search(head.split("\n---", 1)[0]) if head.startswith("---") else None
    return found[1] if found else ""


def published_text(one: PublishedModel) -> Iterator[str]:
    """Lines about a revision."""
    manifest, facts = one.manifest, one.manifest.facts
    yield one.reference
    context = f"context {facts.context_length:,} tokens"
    yield f"  {facts.architecture}, {facts.precision}, {facts.num_layers} layers, {context}"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(manifest.created_unix_s))
    yield f"  {manifest.num_bytes:,} bytes, licence {facts.licence or 'unknown'}, published {when} UTC"
    words = f"tokenizer {manifest.tokenizer_digest[:12]}, words {manifest.text_digest[:12]}"
    yield f"  {words}, manifest {one.manifest_digest[:12]}"


def revisions_of(config: ObjectStoreConfig, name: str) -> list[PublishedModel]:
    """Published revisions of a name, newest first."""

    async def read() -> list[PublishedModel]:
        async with opened_store(config) as store:
            return await list_published(store, name)

    return asyncio.run(read())


class Percents:
    """Says each tenth of the way.

    Args:
        say: told a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._told = say, 0

    def __call__(self, done: int, total: int) -> None:
        if (tenth := 10 * done // max(total, 1)) > self._told:
            self._told = tenth
            self._say(f"  {10 * tenth} % of {total:,} bytes")
