"""One revision of a base model, as the platform's records have it and gateways follow it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from stratos.core.files.embedding_files import MatryoshkaSetting, PoolingSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts of a published model, for people who choose one."""

    architecture: str
    precision: str
    """How the weights of its layers are stored: "BF16", or the scheme of codes."""
    num_layers: Annotated[int, Ge(1)]
    hidden_size: Annotated[int, Ge(1)]
    num_heads: Annotated[int, Ge(1)]
    num_kv_heads: Annotated[int, Ge(1)]
    num_experts: Annotated[int, Ge(0)] = 0
    """Experts of each layer that has some; 0 is a dense model."""
    vocab_size: Annotated[int, Ge(1)]
    context_length: Annotated[int, Ge(1)]
    """Tokens."""
    licence: str = ""
    """Licence as maker or publisher say it; empty is unknown."""
    num_bytes: Annotated[int, Ge(0)] = 0
    """Size of its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpeculation:
    """Who drafts tokens for a model, as its decode workers are started."""

    method: Literal["auto", "off", "ngram", "suffix", "draft", "self"]
    model: str = ""
    """Folder of the draft model of the method "draft", where the workers are."""
    num_speculative_tokens: Annotated[int, Interval(ge=1, le=16)] | None = None
    """Drafted tokens of a row at most; ``None`` is the workers' own."""

    def __post_init__(self) -> None:
        """Check that a draft model is named where one drafts; raises ``ValueError``."""
        if (self.method == "draft") != bool(self.model):
            raise ValueError("the method draft needs a model, the folder of a draft model, and no other has one")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """A revision and its terms; gateways take its words from the object store, workers its weights from elsewhere."""

    name: str
    """Name that clients use as "model"; several revisions may have it."""
    digest: str
    """SHA-256 (hex) of configuration and weights, as workers say it: the revision."""
    text_digest: str
    """SHA-256 (hex) of what gateways read of it: tokenizer, chat template, configuration."""
    source: str = ""
    """Where its weights lie: ``registry:NAME@DIGEST``, a folder of this machine, or a note for people."""
    created_unix_s: Annotated[int, Ge(0)] = 0
    """Seconds since the epoch at which it was added."""
    size: str = ""
    """Row of the plans' prices that its tokens have; empty takes the row "default"."""
    max_input_tokens: Annotated[int, Ge(1)] = 4096
    max_model_len: Annotated[int, Ge(0)] = 0
    """Longest sequence, as the workers have it; 0 is the model's context."""
    max_stream_len: Annotated[int, Ge(0)] = 0
    """Longest sequence where workers stream past the model's context; 0 is that context."""
    default_max_tokens: Annotated[int, Ge(1)] = 512
    quantization: Literal["auto", "int8", "int4", "fp8", "mxfp4", "nf4", "llm-int8", "int8+head", "int4+head"] = "auto"
    speculation: ModelSpeculation | None = None
    """``None``: as the platform was started."""
    pooling: PoolingSetting = "auto"
    matryoshka: MatryoshkaSetting = "auto"
    facts: ModelFacts | None = None
    """Facts of a model from the registry; the record of another one has none."""
