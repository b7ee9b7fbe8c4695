"""What a model folder says about embedding, in the layout of sentence-transformers and without it."""

import json

import pytest

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.embedding_files import EmbeddingConfig, read_embedding_config
from stratos.core.files.model_files import read_model_files
from stratos.core.requests.embedding import PoolingKind

CONFIG = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "vocab_size": 9, "max_position_embeddings": 32}
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
LASTTOKEN = {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_lasttoken": True}


def write(folder, modules=None, pooling=None, **config):
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (folder / "model.safetensors").write_bytes(b"weights")
    if modules is not None:
        (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return read_model_files(folder)


def test_a_plain_model_is_pooled_at_its_last_token(tmp_path):
    files = write(tmp_path)
    assert files.can_generate
    config = read_embedding_config(files)
    assert config == EmbeddingConfig(pooling=PoolingKind.LAST, normalizes=True, size=64, matryoshka=None)
    assert read_embedding_config(files, "mean").pooling is PoolingKind.MEAN
    assert read_embedding_config(files, "off") is None


@pytest.mark.parametrize(
    ("modules", "pooling", "kind", "normalizes"),
    [
        ([TRANSFORMER, POOLING, NORMALIZE], LASTTOKEN, PoolingKind.LAST, True),
        ([TRANSFORMER, POOLING], {"pooling_mode_mean_tokens": True}, PoolingKind.MEAN, False),
        ([TRANSFORMER, POOLING], {"pooling_mode": "lasttoken"}, PoolingKind.LAST, False),
        ([TRANSFORMER, {**POOLING, "type": "other.place.Pooling"}], LASTTOKEN, PoolingKind.LAST, False),
    ],
)
def test_sentence_transformers_files_decide(tmp_path, modules, pooling, kind, normalizes):
    files = write(tmp_path, modules, pooling)
    assert not files.can_generate
    config = read_embedding_config(files)
    assert (config.pooling, config.normalizes) == (kind, normalizes)


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        ([TRANSFORMER, POOLING], {"pooling_mode_cls_token": True}, "pooling by pooling_mode_cls_token"),
        ([TRANSFORMER, POOLING], {}, "pooling by nothing"),
        ([TRANSFORMER, POOLING], {**LASTTOKEN, "pooling_mode_mean_tokens": True}, "pooling by pooling_mode_lasttoken,"),
        ([TRANSFORMER, POOLING, {**POOLING, "type": "x.Dense"}], LASTTOKEN, "'x.Dense' is not supported"),
        ([TRANSFORMER], None, "no Pooling"),
        ([TRANSFORMER, POOLING], None, "config.json does not exist"),
        ([TRANSFORMER, {**POOLING, "path": "../elsewhere"}], LASTTOKEN, "'../elsewhere' is not the name of a folder"),
        ([TRANSFORMER, {**POOLING, "path": 3}], LASTTOKEN, "3 is not the name of a folder"),
        ({"0": TRANSFORMER}, LASTTOKEN, "must hold a list of modules"),
        (["x"], LASTTOKEN, "must hold a list of modules"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(tmp_path, modules, pooling, message):
    files = write(tmp_path, modules, pooling)
    with pytest.raises(InvalidCheckpoint, match=message):
        read_embedding_config(files)
    assert read_embedding_config(files, "last").pooling is PoolingKind.LAST


@pytest.mark.parametrize(
    ("config", "setting", "allowed"),
    [
        ({}, "auto", {64}),
        ({"is_matryoshka": True}, "auto", {1, 16, 32, 63, 64}),
        ({"is_matryoshka": True}, "off", {64}),
        ({"matryoshka_dimensions": [16, 32]}, "auto", {16, 32, 64}),
        ({}, "on", {1, 16, 32, 63, 64}),
    ],
)
def test_a_vector_is_cut_only_where_the_model_was_trained_for_it(tmp_path, config, setting, allowed):
    embedding = read_embedding_config(write(tmp_path, **config), matryoshka=setting)
    assert {n for n in (0, 1, 16, 32, 63, 64, 65) if embedding.allows(n)} == allowed


@pytest.mark.parametrize("value", ["64", None, -1, True])
def test_a_senseless_hidden_size_is_refused(tmp_path, value):
    with pytest.raises(InvalidCheckpoint, match="hidden_size"):
        read_embedding_config(write(tmp_path, hidden_size=value))


def test_senseless_matryoshka_sizes_are_refused(tmp_path):
    with pytest.raises(InvalidCheckpoint, match="matryoshka_dimensions"):
        read_embedding_config(write(tmp_path, matryoshka_dimensions=[65]))


def test_a_body_without_an_output_layer_does_not_generate(tmp_path):
    assert not write(tmp_path, architectures=["Qwen3Model"]).can_generate
