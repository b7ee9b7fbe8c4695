"""Models that are published in tests: the shipped draft model, and one whose weights are two chunks of noise."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from stratos.store.models.model_record import ModelFacts
from stratos.store.object_store import ObjectStore
from stratos.store.registry.catalogue import PublishedModel
from stratos.store.registry.manifest import CHUNK_BYTES
from stratos.store.registry.publishing import PublishAsk, publish
from tests.support.paths import MODELS

DRAFT = MODELS / "draft"
FACTS = ModelFacts(
    architecture="LlamaForCausalLM", precision="BF16", num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2,
    vocab_size=512, context_length=512,
)  # fmt: skip


def save_large_model(folder: Path) -> Path:
    """A model folder with two chunks of weights, the second of 1 MiB; no engine can load it."""
    shutil.copytree(DRAFT, folder)
    piece = random.Random(0).randbytes(1 << 20)
    with (folder / "model.safetensors").open("wb") as file:
        for i in range((CHUNK_BYTES >> 20) + 1):
            file.write(i.to_bytes(4, "little") + piece[4:])
    return folder


async def published(
    store: ObjectStore, folder: Path = DRAFT, name: str = "draft", *, created: int = 1_000, repairs: bool = False
) -> PublishedModel:
    """Publish a folder."""
    ask = PublishAsk(name=name, folder=folder, facts=FACTS, created_unix_s=created, repairs=repairs)
    return await publish(store, ask)
