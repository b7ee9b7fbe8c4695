"""Whole runs on a shipped model: what is written loads here and in compressed-tensors; what is refused, and resumed."""

from __future__ import annotations

import functools
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stratos.common.errors import BadRequest, InvalidCheckpoint, StratosError
from stratos.engine.settings import RunnerConfig
from stratos.quality.evaluation import EvaluationAsk, evaluate
from stratos.quality.expected import ExpectedQuality, read_expected
from stratos.quality.scored_model import ScoredModel
from stratos.quantise.asking import PROGRESS_NAME, QuantiseAsk
from stratos.quantise.run import quantise
from stratos.quantise.schemes import SCHEMES
from stratos.text.tokenizer import Tokenizer
from tests.support.paths import ROOT
from tests.support.reference.native_kernels import NATIVE_SETS
from tests.support.reference.quantised_models import save_quantised
from tests.support.reference.tiny_models import FAMILIES, save_tiny

DRAFT, TEXT = ROOT / "models/draft", ROOT / "tests/fixtures/held_out/unit_tests.txt"
needs_kernels = pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")


def ask(out: Path, scheme: str = "int4-gptq", **changes: Any) -> QuantiseAsk:
    fields = {"model_path": DRAFT, "text_paths": (TEXT,), "sequences": 64, "sequence_tokens": 64}
    return QuantiseAsk(out=out, scheme=scheme, **{**fields, **changes})


def quiet(_: str) -> None: ...


def no_bar(done: int, total: int, seconds: float) -> None: ...


def run(out: Path, scheme: str = "int4-gptq", **changes: Any) -> dict[str, Any]:
    return quantise(ask(out, scheme, **changes), quiet, no_bar)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Every scheme: its folder and its report."""
    folders = {scheme: tmp_path_factory.mktemp("quantised") / scheme for scheme in SCHEMES}
    return {scheme: (folder, run(folder, scheme)) for scheme, folder in folders.items()}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@needs_kernels
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.slow
def test_a_checkpoint_is_served_with_the_perplexity_that_it_says(made: Any, scheme: str) -> None:
    folder, report = made[scheme]
    expected = read_expected(folder)
    assert expected is not None
    model = ScoredModel.load(RunnerConfig(model_path=folder, dtype="float32", num_threads=1), 128)
    assert (
        model.description["quantization"]
        == {"int4": "int4", "int8": "int8-rows", "fp8": "fp8"}[scheme.partition("-")[0]]
    )
    windows = ExpectedQuality.windows_of(expected.text, Tokenizer.load(folder))
    served = math.exp(-float(model.score(windows).logprobs.mean()))
    assert served == pytest.approx(report["perplexity"], rel=2e-3 if scheme.startswith("int8") else 1e-4)
    assert report["float_perplexity"] == pytest.approx(float_perplexity(expected.text), rel=1e-4)


@functools.cache
def float_perplexity(text: str) -> float:
    """Of the model that is quantised, which has the tokens of its copies."""
    model = ScoredModel.load(RunnerConfig(model_path=DRAFT, dtype="float32", num_threads=1), 128)
    windows = ExpectedQuality.windows_of(text, Tokenizer.load(DRAFT))
    return math.exp(-float(model.score(windows).logprobs.mean()))


def test_calibrated_schemes_lose_less_than_the_nearest_numbers(made: Any) -> None:
    lost = {scheme: report["perplexity"] / report["float_perplexity"] - 1 for scheme, (_, report) in made.items()}
    assert lost["int4-gptq"] < lost["int4-rtn"]
    assert lost["int4-awq"] < lost["int4-rtn"]
    assert lost["int4-rtn"] < 0.4
    assert max(lost["int8-rtn"], lost["int8-smoothquant"], lost["fp8-rtn"]) < 0.02
    assert made["int4-gptq"][1]["group_size"] == 32
    sizes = {scheme: report["bytes"] for scheme, (_, report) in made.items()}
    assert sizes["int4-gptq"] == sizes["int4-rtn"] < sizes["fp8-rtn"] < made["fp8-rtn"][1]["bytes_before"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_compressed_tensors_loads_what_our_reader_reads(made: Any, scheme: str) -> None:
    from compressed_tensors.quantization import QuantizationConfig
    from transformers import AutoModelForCausalLM

    from stratos.core.files.model_files import read_model_files
    from stratos.engine.checkpoint.loader import CheckpointReader
    from stratos.engine.checkpoint.model_config import parse_decoder_config
    from stratos.engine.checkpoint.quantised_weight import QuantisedWeight

    folder, _ = made[scheme]
    QuantizationConfig(**json.loads((folder / "config.json").read_text())["quantization_config"])
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    with torch.inference_mode():
        assert bool(torch.isfinite(theirs(torch.tensor([[1, 2, 3]])).logits).all())
    files = read_model_files(folder)
    reader = CheckpointReader(files, parse_decoder_config(files.config), torch.float32, torch.device("cpu"))
    ours = reader.mlp(2).down.weight
    assert isinstance(ours, QuantisedWeight)
    weight = theirs.model.layers[2].mlp.down_proj.weight
    assert torch.equal(weight.float(), ours.floats().bfloat16().float())
    assert torch.equal(theirs.model.layers[2].input_layernorm.weight.float(), reader.attention(2).before_attention)


def test_the_same_ask_gives_the_same_bits_also_when_it_breaks_on_its_way(made: Any, tmp_path: Path) -> None:
    folder, report = made["int4-gptq"]

    def break_off(done: int, total: int, seconds: float) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantise(ask(tmp_path), quiet, break_off)
    assert (tmp_path / PROGRESS_NAME).exists()
    assert not (tmp_path / "config.json").exists()
    begun = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    assert len(begun) == 3
    assert {**run(tmp_path), "out": report["out"]} == report
    assert contents(tmp_path) == contents(folder)
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in begun} == begun


def test_an_unfinished_run_of_another_ask_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / PROGRESS_NAME).write_text('{"scheme": "int4-awq"}')
    with pytest.raises(BadRequest, match="unfinished run of another ask"):
        run(tmp_path)


def test_the_text_is_recorded_and_evaluation_refuses_it(made: Any) -> None:
    folder, _ = made["int4-awq"]
    calibration = json.loads((folder / "calibration.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    assert config["stratos_quantize"]["calibration"] == [text["sha256"] for text in calibration["texts"]]
    runner = {"dtype": "float32", "num_threads": 1}
    sides = {
        name: RunnerConfig(model_path=path, **runner) for name, path in (("reference", DRAFT), ("candidate", folder))
    }
    with pytest.raises(BadRequest, match="not held out"):
        evaluate(EvaluationAsk(text_paths=(TEXT,), **sides), quiet)


def test_what_is_no_weight_is_copied_and_nothing_else(made: Any) -> None:
    folder, _ = made["fp8-rtn"]
    assert (folder / "tokenizer.json").read_bytes() == (DRAFT / "tokenizer.json").read_bytes()
    added = {path.name for path in folder.iterdir()} - {path.name for path in DRAFT.iterdir()}
    shards = {f"model-{number:05d}-of-00004.safetensors" for number in (1, 2, 3, 4)}
    assert added == shards | {"model.safetensors.index.json", "calibration.json", "expected_quality.json"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": "int3-gptq"}, "scheme 'int3-gptq' is not known; known: int4-rtn"),
        ({"text_paths": ()}, "give text with --calibration"),
        ({"text_paths": (Path("no/such.txt"),)}, "cannot be read as UTF-8"),
        ({"group_size": 48}, "groups are multiples of 32 inputs, not 48"),
        ({"group_size": 64}, "groups of 64 do not divide the 352 inputs of down_proj"),
        ({"scheme": "fp8-rtn", "group_size": 32}, "has a scale per output and no groups"),
        ({"sequences": 0}, "at least 1 sequence"),
        ({"sequence_tokens": 5000}, "the model's context is 4096 tokens"),
        ({"sequence_tokens": 4096}, "windows of 4096 tokens, at least 8 are needed"),
        ({"model_path": Path("no/such")}, "is not a folder"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    out = tmp_path / "out"
    with pytest.raises(StratosError, match=message):
        run(out, **changes)
    assert not out.exists()


def test_a_text_that_is_too_short_and_a_folder_in_use_are_refused(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("too short\n" * 20)
    with pytest.raises(BadRequest, match="text short is too short"):
        run(tmp_path / "out", text_paths=(short,))
    with pytest.raises(BadRequest, match="is not an empty folder"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("family", "message"), [("mixtral", "it has experts"), ("glm", "it rotates a part of each head")]
)
def test_a_model_that_cannot_be_quantised_says_why(tmp_path: Path, family: str, message: str) -> None:
    prefix, changes = FAMILIES[family]
    save_tiny(tmp_path / "model", prefix, **changes)
    with pytest.raises(InvalidCheckpoint, match=message):
        run(tmp_path / "out", model_path=tmp_path / "model")


def test_a_model_whose_text_has_no_perplexity_is_not_written(tmp_path: Path) -> None:
    shutil.copytree(DRAFT, tmp_path / "model")
    tensors = load_file(tmp_path / "model/model.safetensors")
    tensors["model.norm.weight"] *= 1e6
    save_file(tensors, tmp_path / "model/model.safetensors")
    with pytest.raises(InvalidCheckpoint, match="this is no model of text"):
        run(tmp_path / "out", "int8-rtn", model_path=tmp_path / "model")
    assert not (tmp_path / "out/config.json").exists()


def test_a_quantised_model_is_not_quantised_again(tmp_path: Path) -> None:
    save_quantised(tmp_path / "model", "gptq")
    with pytest.raises(InvalidCheckpoint, match="is quantised already \\(gptq\\)"):
        run(tmp_path / "out", model_path=tmp_path / "model")


def test_parts_of_one_file_are_read_as_one(made: Any, tmp_path: Path) -> None:
    """The index names every tensor's file; without one of them the model is refused by the file's name."""
    broken = tmp_path / "broken"
    shutil.copytree(made["fp8-rtn"][0], broken)
    (broken / "model-00002-of-00004.safetensors").unlink()
    with pytest.raises(InvalidCheckpoint, match=r"lacks 'model-00002-of-00004\.safetensors'"):
        ScoredModel.load(RunnerConfig(model_path=broken, num_threads=1), 128)
