"""Ways to choose tokens, compared on the shipped model: diversity, likelihood, time, and whether the code parses.

Distinct-n is the share of all n-grams of a method's outputs that are different.  Perplexity is that of the outputs
under the model itself.  A completion parses if Python does, up to its last whole line.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.settings import SchedulerConfig
from stratos.reproduce.load.asks import AskOutcome, LoadAsk
from stratos.reproduce.load.loaded import LoadedModel, load_model
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import at_least
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultPlot, ResultTable, RowResult
from stratos.text.tokenizer import Tokenizer

METHODS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature 0.7": SamplingParams(temperature=0.7),
    "top-k 40": SamplingParams(top_k=40),
    "top-p 0.9": SamplingParams(top_p=0.9),
}
NAMES = (
    "read_lines", "parse_header", "close", "find_module", "write_bytes", "is_empty", "count_words", "get_option",
    "set_timeout", "load_cache", "split_path", "merge", "to_json", "next_item", "check_args", "format_date", "add_user",
    "remove", "open_socket", "copy_tree",
)  # fmt: skip
TEMPLATES = (
    "def {name}(self):\n", 'def {name}(path):\n    """', "import os\n\ndef {name}(", "    def test_{name}(self):\n",
    "def {name}(data, size=0):\n    if ",
)  # fmt: skip
NUM_POINTS = 40
COLUMNS = ("method", "distinct_1", "distinct_2", "distinct_3", "perplexity", "parsed_share", "ms_per_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodFigures:
    """One method's completions."""

    distinct: tuple[float, float, float]
    perplexity: float
    parsed_share: float
    ms_per_token: float
    counts: tuple[int, ...]
    """How often each token came, most frequent first."""
    logprobs: tuple[float, ...]
    """Ascending."""


def measure(conditions: RowConditions) -> RowResult:
    """100 completions by each method."""
    model, tokenizer = load_model(conditions, is_shipped=True), Tokenizer.load(conditions.model)
    num_prompts, num_tokens = conditions.sized(smoke=(4, 12), short=(100, 64), full=(100, 128))
    prompts = [template.format(name=name) for template in TEMPLATES for name in NAMES][:num_prompts]
    found = {
        name: _complete(model, tokenizer, prompts, num_tokens, params, conditions.seed)
        for name, params in METHODS.items()
    }
    greedy, warm = found["greedy"], found["temperature 0.7"]
    diversity, perplexity = warm.distinct[1] / greedy.distinct[1], warm.perplexity / greedy.perplexity
    how = f"temperature 0.7, {num_prompts} completions of {num_tokens} tokens"
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=at_least("0.11", "sampling gives more diverse text than greedy decoding", 1, "x"),
                own=OwnFigure(name="distinct_2_gain", value=diversity, kind=FigureKind.MEASURED, how=how),
            ),
            ClaimAnswer(
                claim=at_least("0.11", "and less coherent text", 1, "x"),
                own=OwnFigure(name="perplexity_gain", value=perplexity, kind=FigureKind.MEASURED, how=how),
            ),
        ],
        tables=[
            ResultTable(
                title=f"{num_prompts} completions of {num_tokens} tokens by the shipped model",
                kind=FigureKind.MEASURED,
                columns=COLUMNS,
                rows=[
                    (name, *one.distinct, one.perplexity, one.parsed_share, one.ms_per_token)
                    for name, one in found.items()
                ],
            )
        ],
        plots=[
            ResultPlot(
                title="Tokens by how often they came", kind=FigureKind.MEASURED, x_label="rank",
                y_label="times",
                is_x_log=True, is_y_log=True,
                lines={name: list(enumerate(one.counts, 1)) for name, one in found.items()},
            ),
            ResultPlot(
                title="Log probability of chosen tokens: share of tokens below", kind=FigureKind.MEASURED,
                x_label="nats below certainty", y_label="share",
                lines={name: _shares(one.logprobs) for name, one in found.items()},
            ),
        ],
        notes=["One seed gives the same outputs on one machine. Milliseconds are those of whole steps of 32 rows."],
    )  # fmt: skip


def _complete(
    model: LoadedModel, tokenizer: Tokenizer, prompts: Sequence[str], num_tokens: int, params: SamplingParams, seed: int
) -> MethodFigures:
    scheduler = SchedulerConfig(max_num_seqs=32)
    asks = [
        LoadAsk(
            num_prompt_tokens=0, num_output_tokens=num_tokens, prompt_ids=tuple(tokenizer.encode(prompt)),
            sampling=params, ignore_eos=False,
        )
        for prompt in prompts
    ]  # fmt: skip
    timed = model.run(scheduler, asks, seed=seed)
    told = [replace(ask, sampling=replace(params, num_logprobs=0)) for ask in asks]  # costs time, so apart
    outcomes = model.run(scheduler, told, seed=seed).outcomes
    logprobs = sorted(value for outcome in outcomes for value in outcome.logprobs)
    texts = [prompt + tokenizer.decode(one.token_ids) for prompt, one in zip(prompts, outcomes, strict=True)]
    counts = Counter(token for outcome in outcomes for token in outcome.token_ids)
    return MethodFigures(
        distinct=(distinct(outcomes, 1), distinct(outcomes, 2), distinct(outcomes, 3)),
        perplexity=math.exp(-sum(logprobs) / len(logprobs)),
        parsed_share=sum(map(parses, texts)) / len(texts),
        ms_per_token=1e3 / timed.tokens_per_s,
        counts=tuple(sorted(counts.values(), reverse=True)),
        logprobs=tuple(logprobs),
    )


def distinct(outcomes: Sequence[AskOutcome], n: int) -> float:
    """Share of different n-grams among all of them."""
    grams = [tuple(ids[i : i + n]) for one in outcomes for ids in (one.token_ids,) for i in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0


def parses(text: str) -> bool:
    """Python reads the text up to its last whole line; lines of a method stand in a class."""
    whole = text[: text.rfind("\n") + 1]
    if whole.startswith(" "):
        whole = "class Case:\n" + whole
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python will refuse one day
            ast.parse(whole)
    except (SyntaxError, ValueError):  # null bytes are a ValueError
        return False
    return True


def _shares(ascending: Sequence[float]) -> list[tuple[float, float]]:
    """Points of the distribution of the distance from certainty."""
    places = [number / NUM_POINTS for number in range(NUM_POINTS + 1)]
    last = len(ascending) - 1
    return [(-ascending[round((1 - share) * last)], share) for share in places]
