"""How good a model says that it is: the perplexity of a text that lies in its folder, checked when it is loaded.

``stratos quantize`` writes the file; for other models it is written by hand.  A model that is worse than it says would
answer garbage with status 200: a wrong file, a kernel that is broken on this processor, codes read in a wrong order.
"""

from __future__ import annotations

import logging
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stratos.common.errors import Internal, InvalidCheckpoint
from stratos.core.files.model_files import read_json
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.quality.held_out import TokenWindow
from stratos.quality.scored_model import ScoredModel
from stratos.text.tokenizer import Tokenizer

EXPECTED_NAME = "expected_quality.json"
WINDOW, NUM_WINDOWS = 128, 8
EXPECTED_TOKENS = WINDOW * NUM_WINDOWS
"""Tokens of the text that are scored: a second of a small model, some seconds of a large one."""
ROOM = 0.10
"""How much above the recorded perplexity is still taken for it: compute types and kernels differ."""
MAX_CHARS = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedQuality:
    """How good a model says that it is."""

    text: str
    perplexity: float
    """Over the first ``NUM_WINDOWS`` windows of the text, each scored alone."""
    max_perplexity: float
    """Above it the model is not served."""
    float_perplexity: float | None = None
    """The same by the floats that it was made of."""

    @classmethod
    def measured(cls, text: str, perplexity: float, float_perplexity: float | None = None) -> ExpectedQuality:
        """Expect what was measured, with some room."""
        limit = perplexity * (1 + ROOM)
        return cls(text=text, perplexity=perplexity, max_perplexity=limit, float_perplexity=float_perplexity)

    @staticmethod
    def windows_of(text: str, tokenizer: Tokenizer) -> list[TokenWindow]:
        """Windows that are scored.

        Raises:
            InvalidCheckpoint: the text has fewer tokens.
        """
        ids = tokenizer.encode_plain(text)
        if len(ids) < EXPECTED_TOKENS:
            raise InvalidCheckpoint(f"{EXPECTED_NAME}: the text has {len(ids)} tokens, {EXPECTED_TOKENS} are needed")
        begins = range(0, EXPECTED_TOKENS, WINDOW)
        return [TokenWindow(text_name="expected", token_ids=tuple(ids[b : b + WINDOW])) for b in begins]

    def as_json(self) -> dict[str, Any]:
        """Fields of the file."""
        return asdict(self)


def read_expected(folder: Path) -> ExpectedQuality | None:
    """Read what a model folder says; ``None`` where it says nothing.

    Raises:
        InvalidCheckpoint: the file says something senseless.
    """
    path = folder / EXPECTED_NAME
    if not path.exists():
        return None
    content = read_json(path)
    text = content.get("text")
    if not isinstance(text, str) or len(text) > MAX_CHARS:
        raise InvalidCheckpoint(f"{path}: text must be a text of at most {MAX_CHARS} characters")
    perplexity, limit = (_perplexity(content.get(name)) for name in ("perplexity", "max_perplexity"))
    if perplexity is None or limit is None or limit < perplexity:
        raise InvalidCheckpoint(f"{path}: perplexity, and max_perplexity from there on, must be numbers from 1 on")
    return ExpectedQuality(text=text, perplexity=perplexity, max_perplexity=limit)


def check_expected(runner: TorchRunner, folder: Path) -> None:
    """Score the model's own text with a runner that has run nothing yet; a model that says nothing is not looked at.

    Raises:
        InvalidCheckpoint: the model is worse than it says.
    """
    expected, info = read_expected(folder), runner.info
    if expected is None:
        return
    if not info.can_generate or min(info.max_model_len, info.num_blocks * info.geometry.block_size) < WINDOW:
        _log.warning("%s: %s is not checked, a context of %d tokens is needed", folder, EXPECTED_NAME, WINDOW)
        return
    if info.is_streaming:
        _log.warning("%s: %s is not checked, streams forget a part of what it scores", folder, EXPECTED_NAME)
        return
    model = ScoredModel(runner)
    windows = ExpectedQuality.windows_of(expected.text, Tokenizer.load(folder))
    try:
        scores = model.score(windows)
    except Internal as error:  # not even finite
        raise InvalidCheckpoint(f"{folder} is not as good as it says ({EXPECTED_NAME}): {error.message}") from error
    model.forget()
    perplexity = math.exp(min(700.0, -float(scores.logprobs.mean())))
    found = f"perplexity {perplexity:.4g} of its own text, {expected.perplexity:.4g} are recorded"
    if not perplexity <= expected.max_perplexity:
        raise InvalidCheckpoint(
            f"{folder} is not as good as it says: {found}, and at most {expected.max_perplexity:.4g} is served; "
            f"its weights are damaged or computed wrong here (the record is {EXPECTED_NAME})"
        )
    _log.info("%s: %s", folder, found)


def _perplexity(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and value >= 1 else None
