"""Layers with experts: how many there are, of what size, and by which scores a token goes to some of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.families.family import ExpertNames, Family
from stratos.engine.checkpoint.fields import Fields, flag, index_list, positive_int, positive_number, shown

COUNT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Spellings of one number: published files have one, transformers 5 may write another."""
GROUP_RULES = ("greedy", "group_limited_greedy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The choice of experts for a token, and their weights."""

    num_chosen: int
    """Experts per token."""
    norms_chosen: bool
    """Whether the weights of the chosen experts are scaled to sum to 1."""
    is_sigmoid: bool = False
    """Scores are sigmoids, not a softmax."""
    scale: float = 1.0
    """On the weights, after all."""
    num_groups: int = 1
    """Groups of experts that stand side by side."""
    num_scoring: int = 2
    """Best experts of a group whose scores add up to its own."""
    num_chosen_groups: int = 1
    """Best groups, of which all experts are chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """The mixture-of-experts layers of a model."""

    num_experts: int
    intermediate_size: int
    routing: Routing
    layers: frozenset[int]
    names: ExpertNames
    shared_size: int = 0
    """Features of the MLP that every token goes through; 0: there is none."""

    @property
    def num_chosen(self) -> int:
        """Experts per token."""
        return self.routing.num_chosen

    def shared_shapes(self, hidden: int) -> dict[str, tuple[int, int]]:
        """(out_features, in_features) of the projections of the shared expert."""
        inner = self.shared_size
        return {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)} if inner else {}


def parse_experts(config: Fields, family: Family, num_layers: int) -> MoeConfig | None:
    """Parse what ``config.json`` says of experts; ``None`` where the family has none.

    Raises:
        InvalidCheckpoint: a senseless value.
    """
    if family.experts is None:
        return None
    fields = {**family.defaults, **config}
    stated = next((config[name] for name in COUNT_FIELDS if config.get(name) is not None), None)
    if stated is not None:
        fields["num_local_experts"] = stated
    num_experts, num_chosen = positive_int(fields, "num_local_experts"), positive_int(fields, "num_experts_per_tok")
    if num_chosen > num_experts:
        raise InvalidCheckpoint(
            f"config.json: num_experts_per_tok is {num_chosen}, but there are {num_experts} experts"
        )
    size, shared = positive_int(fields, family.expert_size_field), 0
    if family.experts.shared:
        count = positive_int(fields, family.shared_count_field) if family.shared_count_field else 1
        shared = count * (positive_int(fields, family.shared_size_field) if family.shared_size_field else size)
    norms = family.always_norms_chosen or flag(fields, "norm_topk_prob", False)
    routing = Routing(num_chosen=num_chosen, norms_chosen=norms)
    return MoeConfig(
        num_experts=num_experts,
        intermediate_size=size,
        routing=_grouped(fields, family, routing, num_experts),
        layers=_expert_layers(fields, family, num_layers),
        names=family.experts,
        shared_size=shared,
    )


def _grouped(fields: Fields, family: Family, routing: Routing, num_experts: int) -> Routing:
    """The same by groups of experts, where the family has them, and with a scale."""
    if family.is_sigmoid_routed:
        routing = replace(routing, is_sigmoid=True, scale=positive_number(fields, "routed_scaling_factor", 1.0))
    elif family.expert_scale_field:
        routing = replace(routing, num_scoring=1, scale=positive_number(fields, family.expert_scale_field))
        if (rule := fields[family.group_rule_field]) not in GROUP_RULES:
            raise InvalidCheckpoint(f"config.json: topk_method must be one of {GROUP_RULES}, not {shown(rule)}")
        if rule == GROUP_RULES[0]:
            return routing
    else:
        return routing
    num_groups, num_chosen_groups = positive_int(fields, "n_group", 1), positive_int(fields, "topk_group", 1)
    group = num_experts // num_groups
    if num_experts % num_groups or num_chosen_groups > num_groups or group * num_chosen_groups < routing.num_chosen:
        raise InvalidCheckpoint(
            f"config.json: n_group {num_groups} and topk_group {num_chosen_groups} do not divide {num_experts} experts "
            f"so that {routing.num_chosen} can be chosen"
        )
    if num_groups > 1 and group < routing.num_scoring:
        raise InvalidCheckpoint(
            "config.json: n_group leaves groups of one expert, and the best two are a group's score"
        )
    return replace(routing, num_groups=num_groups, num_chosen_groups=num_chosen_groups)


def _expert_layers(fields: Fields, family: Family, num_layers: int) -> frozenset[int]:
    if family.dense_layers_field:
        return frozenset(range(_first_experts(fields, family.dense_layers_field, num_layers), num_layers))
    if not family.has_dense_layers:
        return frozenset(range(num_layers))
    dense, step = index_list(fields, "mlp_only_layers"), positive_int(fields, "decoder_sparse_step", 1)
    return frozenset(layer for layer in range(step - 1, num_layers, step) if layer not in dense)


def _first_experts(fields: Fields, name: str, num_layers: int) -> int:
    first = fields.get(name)
    if isinstance(first, bool) or not isinstance(first, int) or not 0 <= first <= num_layers:
        raise InvalidCheckpoint(f"config.json: {name} must be 0 .. {num_layers}, not {shown(first)}")
    return first
