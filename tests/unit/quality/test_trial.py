"""Models that a worker or a gateway would refuse are found before they are published."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stratos.cli.models import publishing
from stratos.cli.models.publishing import PublishRequest, facts_of, publish_model
from stratos.common.errors import BadRequest, InvalidCheckpoint
from stratos.quality.trial import try_model
from stratos.store.settings import ObjectStoreConfig
from tests.support.paths import MODELS

DRAFT = MODELS / "draft"
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(DRAFT, tmp_path / "model")
    return tmp_path / "model"


def test_a_sound_model_computes_a_token() -> None:
    found = try_model(DRAFT, "", computes_token=True)
    assert found["num_tensors"] == 29
    assert 0 <= found["token"] < 8192
    assert "token" not in try_model(DRAFT, "", computes_token=False)


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def spoil(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.mlp.down_proj.weight"][-1, 3] = float("nan")


def cut(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()


def retype(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (spoil, "holds NaN or infinity"),
        (cut, "has shape"),
        (retype, "has type I32"),
        (lambda tensors: tensors.pop("model.norm.weight"), "lacks tensor model.norm.weight"),
        (lambda tensors: tensors.update(more=torch.zeros(1)), "does not account for"),
    ],
)
def test_weights_that_are_not_what_the_configuration_says_are_refused(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    change_tensors(folder, change)
    with pytest.raises(InvalidCheckpoint, match=message):
        try_model(folder, "", computes_token=False)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{}", "tokenizer"),
        ("chat_template.jinja", "{% for %}", "chat template is not valid"),
        ("chat_template.jinja", "{{ raise_exception('no') }}", "does not render a message of a user"),
        ("config.json", "[]", "must hold a JSON object"),
    ],
)
def test_words_that_no_gateway_can_use_are_refused(folder: Path, name: str, content: str, message: str) -> None:
    (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(InvalidCheckpoint, match=message):
        try_model(folder, "", computes_token=False)


def test_a_tokenizer_that_is_larger_than_the_vocabulary_is_refused(folder: Path) -> None:
    definition = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    definition["added_tokens"].append({**definition["added_tokens"][0], "id": 100_000, "content": "<more>"})
    (folder / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    with pytest.raises(InvalidCheckpoint, match="the tokenizer has 100001 tokens"):
        try_model(folder, "", computes_token=False)


def test_a_pickle_is_never_published(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    for look in (lambda: facts_of(folder), lambda: try_model(folder, "", computes_token=False)):
        with pytest.raises(InvalidCheckpoint, match=r"safetensors"):
            look()
    with pytest.raises(BadRequest, match="is not a folder"):
        facts_of(folder / "none")


def test_facts_are_those_of_the_configuration_and_the_licence_that_of_the_readme(folder: Path) -> None:
    facts = facts_of(folder)
    assert (facts.architecture, facts.precision, facts.num_layers) == ("LlamaForCausalLM", "BF16", 3)
    assert (facts.context_length, facts.num_experts, facts.licence) == (4096, 0, "")
    assert facts.num_bytes == sum(path.stat().st_size for path in DRAFT.iterdir())
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\nlicense: mine\n", encoding="utf-8")
    assert facts_of(folder).licence == "apache-2.0"
    assert facts_of(folder, "ours").licence == "ours"


def test_words_that_change_after_they_were_tried_are_not_published(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried_then_changed(module: str, ask: dict[str, Any], threads: int) -> dict[str, Any]:
        report = try_model(Path(ask["folder"]), ask["digest"], computes_token=False)
        (folder / "chat_template.jinja").write_text("{{ nonsense(", encoding="utf-8")
        return report

    monkeypatch.setattr(publishing, "run_module", tried_then_changed)
    (tmp_path / "objects").mkdir()
    asked = PublishRequest(
        name="draft", folder=folder, store=ObjectStoreConfig(url=f"file://{tmp_path}/objects"),
        digests_file=tmp_path / "digests.json",
    )  # fmt: skip
    with pytest.raises(InvalidCheckpoint, match="changed since they were checked"):
        publish_model(asked)
    assert not (tmp_path / "objects/registry/models").exists()
