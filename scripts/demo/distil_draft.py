"""Train a draft model on what the base says of each next token, rather than on the text alone.

    python -m scripts.demo.distil_draft --out models/draft-distilled

It begins with the shipped draft.  Where drafts are drawn with the target's own noise, at least (1 - TV) / (1 + TV) of
them are accepted, TV being the total variation of the two distributions: so the loss goes from KL(base || draft), which
learns fast, to TV itself.  The text is all of the corpus but what is held out: the base knows its own part by heart in
places, and says of the others what it will say of text that it never saw.  Measured by
``python -m scripts.bench.acceptance --draft DIR``.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from scripts.demo.demo_corpus import build_corpus
from scripts.demo.train_demo_model import Optimizer, Phase, batches, encode

_SHARE_OF_KL = 0.5
"""Part of the steps in which TV gains on KL, until it is alone."""


@torch.no_grad()
def said_by(teacher: LlamaForCausalLM, rows: torch.Tensor) -> torch.Tensor:
    """Log probabilities of what follows each id of ``rows`` [batch, context]: float32 [batch, context, vocabulary]."""
    with torch.autocast("cpu", torch.bfloat16):
        return teacher(input_ids=rows, use_cache=False).logits.float().log_softmax(-1)


def distances(student: LlamaForCausalLM, rows: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean KL(target || student) in nats, and mean total variation, over all places."""
    with torch.autocast("cpu", torch.bfloat16):
        own = student(input_ids=rows, use_cache=False).logits.float().log_softmax(-1)
    p = target.exp()
    return (p * (target - own)).sum(-1).mean(), 0.5 * (p - own.exp()).abs().sum(-1).mean()


@torch.no_grad()
def held_out_tv(student: LlamaForCausalLM, teacher: LlamaForCausalLM, ids: torch.Tensor, context: int = 512) -> float:
    """Mean total variation over the first windows of a held-out stream."""
    rows = ids[: 32 * context].view(-1, context)
    found = [distances(student, row[None], said_by(teacher, row[None]))[1].item() for row in rows]
    return sum(found) / len(found)


def distil(models: Path, phase: Phase, lr: float) -> LlamaForCausalLM:
    """Train; returns the student in float32."""
    torch.manual_seed(3)
    teacher = LlamaForCausalLM.from_pretrained(models / "base", dtype=torch.float32).eval()
    student = LlamaForCausalLM.from_pretrained(models / "draft", dtype=torch.float32).train()
    tokenizer, corpus = Tokenizer.from_file(str(models / "base" / "tokenizer.json")), build_corpus()
    ids = encode(tokenizer, [text for part in corpus.values() for text in part.train])
    held = encode(tokenizer, corpus["base"].held_out)
    print(f"held-out TV before: {held_out_tv(student, teacher, held):.4f}", flush=True)
    num_steps, started = phase.tokens // (phase.batch * phase.context), time.monotonic()
    optimizer = Optimizer(student, lr, num_steps)
    for step, rows in enumerate(batches(ids, phase, 11)):
        kl, tv = distances(student, rows[:, :-1], said_by(teacher, rows[:, :-1]))
        weight = min(1.0, step / (num_steps * _SHARE_OF_KL))
        ((1 - weight) * kl + weight * tv).backward()
        optimizer.step(step)
        if step % 50 == 0:
            spent_s = time.monotonic() - started
            print(f"step {step}/{num_steps} KL {kl.item():.3f} TV {tv.item():.3f} {spent_s:.0f}s", flush=True)
    print(f"held-out TV after: {held_out_tv(student, teacher, held):.4f}", flush=True)
    return student


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path("models"), help="folder with base and draft")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=2_000_000)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    student = distil(args.models, Phase(args.tokens, 8, 256), args.lr)
    student.bfloat16().save_pretrained(args.out)
    for path in (args.models / "draft").glob("*"):
        if not (args.out / path.name).exists():
            shutil.copy(path, args.out / path.name)


if __name__ == "__main__":
    main()
