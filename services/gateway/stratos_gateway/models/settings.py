"""Which base models a gateway serves, and how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from stratos.core.files.embedding_files import MatryoshkaSetting, PoolingSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The base model: its files, its name, the limits of requests for it."""

    path: Path
    """Folder of the base model: tokenizer, chat template, and the files that its digest is made of."""
    digest: str = ""
    """Digest of the model folder and state of its files, as `stratos up` hands it over; empty: computed at start. The
    digest alone is believed, for a folder without weights."""
    name: str = ""
    """Name that clients use as "model"; empty takes the folder's name. Gateways of one pool of workers must have one
    name: it says which router is active for them."""
    size: str = ""
    """Row of the plans' prices that its tokens have, such as "8b"; empty takes the row "default"."""
    max_input_tokens: Annotated[int, Ge(1)] = 4096
    """Longest prompt; longer ones get 400 context_length_exceeded."""
    max_model_len: Annotated[int, Ge(0)] = 0
    """Longest sequence, prompt and output, as the workers have it; 0 is the model's context."""
    quantization: Literal["auto", "int8", "int4", "fp8", "mxfp4", "nf4", "llm-int8", "int8+head", "int4+head"] = "auto"
    """Weights as the workers have them (their RUNNER__QUANTIZATION), which the list of models tells."""
    max_stream_len: Annotated[int, Ge(0)] = 0
    """Longest sequence where workers stream past the model's context (their attention_window); 0 is that context."""
    default_max_tokens: Annotated[int, Ge(1)] = 512
    """Output limit of a chat request that names none."""
    pooling: PoolingSetting = "auto"
    """How embeddings are pooled: "auto" takes what the model folder says, else the last token; "off" serves none."""
    matryoshka: MatryoshkaSetting = "auto"
    """Whether embeddings may be cut to fewer dimensions: "auto" asks config.json (is_matryoshka)."""

    @property
    def served_name(self) -> str:
        """Name that clients use as "model"; revisions of a model have one."""
        return self.name or self.path.resolve().name


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecordsConfig:
    """Models that records name: `stratos models add`, without a restart."""

    max_models: Annotated[int, Ge(0)] = 64
    """Records that a gateway serves at once, each with its tokenizer in memory; further ones are refused by name."""
    folder: Path | None = None
    """Where their tokenizers and templates are kept, of this gateway alone; unset takes a temporary folder, which a
    restart fills from the object store again."""
    retry_s: Annotated[float, Gt(0)] = 15.0
    """After which a model is tried again that was refused for what may pass, such as an object store that is away."""
    live_poll_s: Annotated[float, Gt(0)] = 1.0
    """Between two looks at which revisions have live workers, where a name has several."""
