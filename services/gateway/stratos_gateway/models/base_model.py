"""Facts of a base model: what its name stands for, its limits, and what it can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stratos.core.files.embedding_files import EmbeddingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModel:
    """One base model that this gateway serves."""

    name: str
    digest: str
    max_model_len: int
    vocab_size: int
    created_unix_s: int
    can_generate: bool = True
    can_chat: bool = True
    can_score: bool = False
    embedding: EmbeddingConfig | None = None
    """How it embeds; ``None`` when it does not."""
    size: str = ""
    """Row of the plans' prices."""
    quantization: str = ""
    """Scheme of its weights; empty: floats."""

    def describe(self) -> dict[str, Any]:
        """Capabilities, for a list of models; adapters can do the same."""
        routes = {
            "chat.completions": self.can_chat and self.can_generate,
            "completions": self.can_generate,
            "embeddings": self.embedding is not None,
            "score": self.can_score,
            "rerank": self.can_score,
        }
        sizes = {} if self.embedding is None else {"embedding_dimensions": self.embedding.size}
        return {"capabilities": [name for name, is_there in routes.items() if is_there], **sizes}
