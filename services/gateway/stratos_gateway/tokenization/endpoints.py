"""The routes of this room: the same edge and the same steps as those that generate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratos.core.tenant import Tenant
from stratos_gateway.answering.contract import Preparer, Step
from stratos_gateway.answering.edge import Edge
from stratos_gateway.answering.endpoint import Endpoint
from stratos_gateway.models.catalogue import ModelCatalogue
from stratos_gateway.tokenization.preparation import (
    CountPreparer,
    DetokenizePreparer,
    PreparedAnswer,
    TokenCounting,
    TokenizePreparer,
)
from stratos_gateway.tokenization.source import ReadyOutput, ReadySender, ReadySource


def ready_endpoints(edge: Edge, steps: Sequence[Step], counting: TokenCounting) -> Mapping[str, Endpoint[ReadyOutput]]:
    """Endpoints that no worker is needed for, by path."""
    preparers: dict[str, Preparer[PreparedAnswer]] = {
        "/tokenize": TokenizePreparer(counting),
        "/detokenize": DetokenizePreparer(counting),
        "/v1/messages/count_tokens": CountPreparer(counting),
    }
    sources, sender = [ReadySource()], ReadySender()
    return {path: Endpoint(edge, preparer, steps, sources, sender) for path, preparer in preparers.items()}


async def tokenizer_info(catalogue: ModelCatalogue, tenant: Tenant, name: str | None) -> dict[str, Any]:
    """The tokenizer's own configuration and the model's chat template, as vLLM tells them.

    Raises:
        ModelNotFound: the tenant has no model of that name; without a name the gateway's first one is told of.
    """
    model = (await catalogue.resolve(tenant, catalogue.models.home.base.name if name is None else name)).served
    return {
        **model.tokenizer.config,
        "tokenizer_class": model.tokenizer.config.get("tokenizer_class", "PreTrainedTokenizerFast"),
        "chat_template": None if model.template is None else model.template.source,
    }
