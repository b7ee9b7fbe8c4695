"""A whole run: layer by layer through the model, twice for the held back text, as floats and as it was rounded."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.model_files import read_json
from stratos.engine.checkpoint.loader import CheckpointReader
from stratos.engine.checkpoint.quantisation_config import QuantisationConfig, parse_quantisation
from stratos.engine.checkpoint.stored_tensors import INDEX_NAME, StoredTensor, stored_tensors
from stratos.engine.checkpoint.tensor_names import EMBEDDING
from stratos.engine.checkpoint.weight_schemes import LinearScheme
from stratos.quality.evaluation import CALIBRATION_NAME
from stratos.quality.expected import EXPECTED_NAME, ExpectedQuality
from stratos.quality.held_out import HeldOutText, cut_windows, read_texts
from stratos.quality.paired import MAX_NATS
from stratos.quantise.asking import PROGRESS_NAME, AcceptedAsk, QuantiseAsk, accept, identity, open_folder
from stratos.quantise.grid import NumberGrid
from stratos.quantise.held_back import hold_back
from stratos.quantise.layer import CPU, PRODUCTS, FloatLayer, FloatWeights, mean_loss, read_layer
from stratos.quantise.rounding import Statistics, round_layer
from stratos.quantise.schemes import stated_config
from stratos.quantise.shard import layer_tensors, other_tensors, read_rounded, shard_name, write_shard
from stratos.quantise.statistics import InputStatistics
from stratos.text.tokenizer import Tokenizer

_SCALE_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16}
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".index.json")
_OWN_NAMES = ("config.json", EXPECTED_NAME, CALIBRATION_NAME)


class LayerProgress(Protocol):
    """Is told of each layer that is done."""

    def __call__(self, done: int, total: int, seconds: float) -> None: ...


@dataclass(slots=True)
class _Texts:
    """Tokens, and hidden states [tokens, hidden] of each sequence in front of the next layer."""

    pinned: str
    pinned_ids: list[Tensor]
    rounded: list[Tensor] = field(default_factory=list)
    """The text that calibrates, behind rounded layers."""
    pinned_rounded: list[Tensor] = field(default_factory=list)
    pinned_floats: list[Tensor] = field(default_factory=list)


@torch.inference_mode()
def quantise(ask: QuantiseAsk, say: Callable[[str], None], progress: LayerProgress) -> dict[str, Any]:
    """Write the quantised checkpoint; what was done, as JSON values.

    Raises:
        BadRequest: something of the ask cannot be, or the folder of the result is not empty.
        InvalidCheckpoint: the model cannot be read, or not be quantised.
    """
    accepted, texts = accept(ask), read_texts(ask.text_paths)
    tokenizer = Tokenizer.load(ask.model_path)
    kept, pinned = hold_back(texts, tokenizer)
    wanted = identity(ask, accepted, [{"name": text.name, "sha256": text.digest} for text in texts])
    reader = CheckpointReader(accepted.files, accepted.config, torch.float32, CPU)
    flow = _begin(ask, accepted, kept, pinned, tokenizer, reader.embedding())
    open_folder(ask.out, wanted)
    say(f"{ask.model_path} -> {ask.out}: {_described(accepted, flow)}")
    _Layers(ask, accepted, reader, flow).run(progress)
    floats, rounded = _perplexities(accepted, reader, flow)
    _finish(ask, accepted, wanted, ExpectedQuality.measured(pinned, rounded, floats))
    return {
        "out": str(ask.out),
        "scheme": accepted.scheme.name,
        "group_size": accepted.group,
        "bytes": sum(path.stat().st_size for path in ask.out.glob("*.safetensors")),
        "bytes_before": sum(path.stat().st_size for path in accepted.files.weight_paths),
        "perplexity": rounded,
        "float_perplexity": floats,
    }


def _begin(
    ask: QuantiseAsk,
    accepted: AcceptedAsk,
    texts: list[HeldOutText],
    pinned: str,
    tokenizer: Tokenizer,
    embedding: Tensor,
) -> _Texts:
    """Embed the text; a method that looks at no text gets the held back one alone."""
    flow = _Texts(pinned, [torch.tensor(w.token_ids) for w in ExpectedQuality.windows_of(pinned, tokenizer)])
    scale = accepted.config.options.embedding_scale
    if accepted.scheme.method != "rtn":
        size = ask.sequence_tokens
        windows = cut_windows(texts, tokenizer, size, ask.sequences * size)
        flow.rounded = [embedding[torch.tensor(window.token_ids)] * scale for window in windows]
    flow.pinned_floats = [embedding[ids] * scale for ids in flow.pinned_ids]
    flow.pinned_rounded = list(flow.pinned_floats)
    return flow


def _described(accepted: AcceptedAsk, flow: _Texts) -> str:
    group = f", groups of {accepted.group}" if accepted.group else ""
    text = f"{len(flow.rounded)} sequences" if flow.rounded else "no calibration"
    return f"{accepted.scheme.name}{group}, {text}"


class _Layers:
    """The layers of a run, one after another."""

    def __init__(self, ask: QuantiseAsk, accepted: AcceptedAsk, reader: CheckpointReader, flow: _Texts) -> None:
        self._out, self._config, self._scheme = ask.out, accepted.config, accepted.scheme
        self._reader, self._flow = reader, flow
        self._source = stored_tensors(accepted.files)
        self._scale_dtype = _scale_dtype(self._source)
        self._grid = NumberGrid(numbers=accepted.scheme.numbers, group=accepted.group, scale_dtype=self._scale_dtype)
        stated = parse_quantisation({"quantization_config": stated_config(accepted.scheme, accepted.group)})
        assert stated is not None
        self._stated: QuantisationConfig = stated
        self._longest = max(len(rows) for rows in (*flow.rounded, *flow.pinned_floats))

    def run(self, progress: LayerProgress) -> None:
        """Write the files that are missing, and take the text through all layers."""
        total = self._config.num_layers + 1
        first = self._out / shard_name(1, total)
        if not first.exists():
            write_shard(first, other_tensors(self._source, self._config.num_layers))
        for index in range(self._config.num_layers):
            began_s = time.monotonic()
            self._layer(index, self._out / shard_name(index + 2, total))
            progress(index + 1, self._config.num_layers, time.monotonic() - began_s)

    def _layer(self, index: int, path: Path) -> None:
        flow, floats = self._flow, read_layer(self._reader, index)
        layer = FloatLayer(self._config, index, floats, self._longest)
        flow.pinned_floats = [layer.run(rows) for rows in flow.pinned_floats]
        if not path.exists():
            inputs = self._observed(layer, floats)
            rounded = round_layer(self._config, index, floats, inputs, self._scheme, self._grid)
            write_shard(path, layer_tensors(self._source, index, rounded, self._scale_dtype))
        # a layer that an earlier run wrote goes on as one of this run does: both are read back
        weights = read_rounded(path, self._config, index, floats, self._stated)
        cuts_rows = self._scheme.numbers == LinearScheme.INT8_ROWS
        layer = FloatLayer(self._config, index, weights, self._longest, cuts_rows=cuts_rows)
        flow.rounded = [layer.run(rows) for rows in flow.rounded]
        flow.pinned_rounded = [layer.run(rows) for rows in flow.pinned_rounded]

    def _observed(self, layer: FloatLayer, floats: FloatWeights) -> Statistics:
        if not self._flow.rounded:
            return {}
        found = {name: InputStatistics(floats.weight(name).shape[1]) for name in PRODUCTS}
        for rows in self._flow.rounded:
            layer.run(rows, lambda name, x: found[name].add(x))
        return found


def _scale_dtype(tensors: dict[str, StoredTensor]) -> torch.dtype:
    """Type of scales and norms: the checkpoint's."""
    return _SCALE_DTYPES.get(tensors[_embedding_name(tensors)].dtype, torch.float32)


def _embedding_name(tensors: dict[str, StoredTensor]) -> str:
    return EMBEDDING if EMBEDDING in tensors else next(iter(tensors))


def _perplexities(accepted: AcceptedAsk, reader: CheckpointReader, flow: _Texts) -> tuple[float, float]:
    """Perplexity of the held back text, by the floats and by the rounded layers; ``InvalidCheckpoint``: it has none."""
    output = reader.lm_head()
    head = reader.final_norm(), output if isinstance(output, Tensor) else reader.embedding()
    sides = (flow.pinned_floats, flow.pinned_rounded)
    losses = [mean_loss(accepted.config, head, rows, flow.pinned_ids) for rows in sides]
    if not all(loss < MAX_NATS for loss in losses):
        found = f"{losses[0]:.4g} and, rounded, {losses[1]:.4g}"
        raise InvalidCheckpoint(f"the losses of the held back text are {found}: this is no model of text")
    return math.exp(losses[0]), math.exp(losses[1])


def _finish(ask: QuantiseAsk, accepted: AcceptedAsk, wanted: dict[str, Any], expected: ExpectedQuality) -> None:
    """Write all but the weights; the configuration last, since a folder without it is no model."""
    for path in sorted(ask.model_path.iterdir()):
        if path.is_file() and not path.name.endswith(_WEIGHT_SUFFIXES) and path.name not in _OWN_NAMES:
            shutil.copyfile(path, ask.out / path.name)
    _write_json(ask.out / INDEX_NAME, _index(ask.out))
    _write_json(ask.out / CALIBRATION_NAME, wanted)
    _write_json(ask.out / EXPECTED_NAME, expected.as_json())
    config = read_json(ask.model_path / "config.json")
    calibration = {"scheme": accepted.scheme.name, "calibration": [text["sha256"] for text in wanted["texts"]]}
    stated = stated_config(accepted.scheme, accepted.group)
    _write_json(ask.out / "config.json", {**config, "quantization_config": stated, "stratos_quantize": calibration})
    (ask.out / PROGRESS_NAME).unlink(missing_ok=True)


def _index(out: Path) -> dict[str, Any]:
    weight_map: dict[str, str] = {}
    total = 0
    for path in sorted(out.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            weight_map |= dict.fromkeys(file.keys(), path.name)
        total += path.stat().st_size
    return {"metadata": {"total_size": total}, "weight_map": weight_map}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part.rename(path)
