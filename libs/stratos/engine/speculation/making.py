"""The proposer that settings ask for, and what they may not ask for."""

from __future__ import annotations

import json
from pathlib import Path

from stratos.common.clock import Clock, SystemClock
from stratos.common.errors import InvalidCheckpoint
from stratos.engine.contract.runner import Runner
from stratos.engine.settings import SchedulerConfig
from stratos.engine.speculation.model_draft import ModelProposer
from stratos.engine.speculation.ngram import NgramProposer
from stratos.engine.speculation.proposer import Proposer
from stratos.engine.speculation.suffix import SuffixProposer

_NO_DRAFT = {
    "draft": "the method draft needs a draft model: set speculation.model_path to its folder",
    "self": "the method self needs an engine that loads weights: it drafts with a copy of them in int4",
}


def make_proposer(
    config: SchedulerConfig, runner: Runner, draft: Runner | None = None, clock: Clock | None = None
) -> Proposer | None:
    """The proposer that the settings ask for; ``None``: no speculation.

    Args:
        config: its ``speculation`` says which.
        runner: of the target.
        draft: of the draft model, where the method is "draft" or "self".
        clock: times the draft model.

    Raises:
        InvalidCheckpoint: they ask for one by name, and drafts cannot be verified, or not by this draft model.
    """
    method = config.speculation.method
    if method == "off" or (method == "auto" and _obstacle(runner, config)):
        return None
    check_speculation(runner, config)
    if method == "suffix":
        return SuffixProposer()
    if method not in ("draft", "self"):
        return NgramProposer()
    if draft is None:
        raise InvalidCheckpoint(_NO_DRAFT[method])
    check_draft(runner, draft)
    return ModelProposer(draft, clock or SystemClock(), method)


def check_speculation(runner: Runner, config: SchedulerConfig) -> None:
    """Raise ``InvalidCheckpoint`` where drafts cannot be verified."""
    if obstacle := _obstacle(runner, config):
        raise InvalidCheckpoint(f"speculation {obstacle}")


def _obstacle(runner: Runner, config: SchedulerConfig) -> str:
    """Why drafts cannot be verified; empty where they can."""
    if not runner.can_verify:
        return "does not run on a GPU yet: its steps sample one token per row"
    if runner.info.is_streaming:
        return "cannot be combined with attention_window"
    if runner.info.num_state_slots:
        return "cannot be combined with layers that have a state: what they saw of a rejected draft stays in it"
    return "" if config.baseline.kv_cache else "needs the KV cache that this baseline is without"


def check_draft(target: Runner, draft: Runner) -> None:
    """Raise ``InvalidCheckpoint`` for a draft model that has other tokens than the target, or is no smaller."""
    own, other = target.info, draft.info
    if other.num_state_slots:
        raise InvalidCheckpoint(f"the draft model {other.model_path} has layers with a state, which cannot draft")
    is_same = own.vocab_size == other.vocab_size
    if own.model_path is not None and other.model_path is not None:
        is_same = is_same and _vocabulary(own.model_path) == _vocabulary(other.model_path)
    if not is_same:
        raise InvalidCheckpoint(f"the draft model {other.model_path} has another vocabulary than the model")
    if other.step_weight_bytes and other.step_weight_bytes >= own.step_weight_bytes:
        raise InvalidCheckpoint(
            f"the draft model {other.model_path} reads {other.step_weight_bytes:,} bytes a step, and the model "
            f"{own.step_weight_bytes:,}: a draft model is smaller"
        )


def _vocabulary(folder: Path) -> dict[str, int]:
    """Ids by token, added ones included; empty where the folder has no ``tokenizer.json``."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return {}
    definition = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = definition["model"]["vocab"]
    added = {token["content"]: token["id"] for token in definition.get("added_tokens", ())}
    known = vocabulary if isinstance(vocabulary, dict) else {entry[0]: place for place, entry in enumerate(vocabulary)}
    return {**known, **added}
