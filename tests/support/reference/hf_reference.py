"""The oracle: ``transformers`` (and ``peft``) in float32, and the rule by which our output must equal it."""

from dataclasses import dataclass, field

import torch

from tests.support.paths import FIXTURES, MODELS

TIE = 1e-4
"""Two logits closer than this may be ranked either way."""


@dataclass
class Verdict:
    """Differences found over a set of prompts; at most one tie in 50 is allowed, anything else fails at once."""

    ties: list[str] = field(default_factory=list)
    num_prompts: int = 0
    worst_logprob_error: float = 0.0


class Reference:
    """Greedy generation and teacher-forced log probabilities of the shipped model, with or without an adapter."""

    def __init__(self, adapter: str | None = None) -> None:
        from transformers import LlamaForCausalLM

        torch.set_num_threads(1)  # the platform under test needs the other cores
        self.model = LlamaForCausalLM.from_pretrained(MODELS / "base", dtype=torch.float32)
        if adapter:
            from peft import PeftModel

            self.model = PeftModel.from_pretrained(self.model, MODELS / "adapters" / adapter)
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = 0

    @torch.inference_mode()
    def generate(self, prompt: list[int], num_tokens: int) -> list[int]:
        """Greedy continuation that no end token ends."""
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        out = self.model.generate(input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=num_tokens)
        return out[0, len(prompt) :].tolist()

    @torch.inference_mode()
    def logits(self, prompt: list[int], tokens: list[int]) -> torch.Tensor:
        """Teacher-forced logits at the positions that predict ``tokens``: float32 [len(tokens), vocab]."""
        ids = torch.tensor([prompt + tokens[:-1]])
        return self.model(input_ids=ids, use_cache=False, logits_to_keep=len(tokens)).logits[0].float()

    def check(self, verdict: Verdict, prompt: list[int], tokens: list[int], logprobs: list[float]) -> None:
        """Compare one output; raises ``AssertionError`` on a difference that is no tie."""
        verdict.num_prompts += 1
        logits = self.logits(prompt, tokens)
        expected = tokens if _are_greedy(logits, tokens) else self.generate(prompt, len(tokens))
        if tokens != expected:
            at = next(i for i, (a, b) in enumerate(zip(tokens, expected, strict=True)) if a != b)
            gap = abs(logits[at, tokens[at]] - logits[at, expected[at]]).item()
            text = f"prompt of {len(prompt)}: token {at} is {tokens[at]} not {expected[at]}, logits differ by {gap:.2e}"
            print(text)
            assert gap < TIE, text
            verdict.ties.append(text)
        chosen = torch.log_softmax(logits, -1)[torch.arange(len(tokens)), torch.tensor(tokens)]
        error = (chosen - torch.tensor(logprobs)).abs().max().item()
        verdict.worst_logprob_error = max(verdict.worst_logprob_error, error)
        assert error < TIE, f"prompt of {len(prompt)}: a log probability is off by {error:.2e}"


def _are_greedy(logits: torch.Tensor, tokens: list[int]) -> bool:
    """Generation would give these tokens: each leads, after those before it, by more than rounding moves a logit.

    One pass over the whole sequence says so, where generation needs one for each token.
    """
    best = logits.topk(2)
    is_leading = best.indices[:, 0] == torch.tensor(tokens)
    return bool((is_leading & (best.values[:, 0] - best.values[:, 1] >= TIE)).all())


def held_out_ids() -> list[int]:
    """Token ids of text that no shipped model was trained on."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODELS / "base" / "tokenizer.json"))
    folder = FIXTURES / "held_out"
    text = "\n".join((folder / f"{name}.txt").read_text() for name in ("unit_tests", "headers", "prose"))
    return tokenizer.encode(text, add_special_tokens=False).ids


def spread_prompts(count: int, longest: int) -> list[list[int]]:
    """``count`` prompts with lengths from 1 to ``longest``, geometrically spread, from different places of the text."""
    ids = held_out_ids()
    lengths = [round(longest ** (i / (count - 1))) for i in range(count)]
    starts = [(i * 7919) % (len(ids) - length) for i, length in enumerate(lengths)]
    return [ids[start : start + length] for start, length in zip(starts, lengths, strict=True)]
