"""Train the tool model that ships with StratosServe: the demo base, taught to call functions.

    python -m scripts.demo.train_tool_model --out models/tools

It has the base's vocabulary and eight added tokens for its tags.  Blanks, digits and marks are tokens of their own, so
that a value has the same tokens in a question and in a call: copying it is then the same step everywhere.  Only answers
are learned.  Goes on from its newest checkpoint.  CPU only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import cast

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from scripts.demo.tool_corpus import conversations
from scripts.demo.tool_encoding import ADDED, Encoder, Example, write_tokenizer
from scripts.demo.train_demo_model import Optimizer

TRAINING_SEED = 1
MAX_LENGTH = 512
"""Longer conversations are left out."""
IGNORED = -100
POOL_BATCHES = 16
"""Batches that are sorted by length together."""


def widened_base(base: Path) -> LlamaForCausalLM:
    """The base in float32, with rows for the added tokens near those of its own marks."""
    model = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    size = model.config.vocab_size
    torch.manual_seed(3)
    model.resize_token_embeddings(size + len(ADDED), mean_resizing=False)
    with torch.no_grad():
        rows = cast("torch.nn.Embedding", model.get_input_embeddings()).weight
        rows[size:] = rows[1:5].mean(0) + 0.02 * torch.randn(len(ADDED), rows.shape[1])
    assert isinstance(model.config, LlamaConfig)
    return model


def batches(encoder: Encoder, batch_tokens: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Ids and labels without end, int64 [rows, length]: rows of nearly one length, padded behind their ends."""
    source = (example for c in conversations(seed) if len((example := encoder.example(c)).ids) <= MAX_LENGTH)
    generator = torch.Generator().manual_seed(seed)
    pool: list[Example] = []
    while True:
        pool += islice(source, POOL_BATCHES * batch_tokens // 160)
        pool.sort(key=lambda example: len(example.ids))
        packed, rows = list[list[Example]](), list[Example]()
        for example in pool:
            if rows and (len(rows) + 1) * len(example.ids) > batch_tokens:
                packed.append(rows)
                rows = []
            rows.append(example)
        pool = []
        packed.append(rows)
        for number in torch.randperm(len(packed), generator=generator).tolist():
            yield padded(packed[number])


def padded(rows: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """One batch; what is not an answer has no label."""
    length = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    labels = torch.full((len(rows), length), IGNORED)
    for number, row in enumerate(rows):
        ids[number, : len(row.ids)] = torch.tensor(row.ids)
        labels[number, row.num_prompt : len(row.ids)] = torch.tensor(row.ids[row.num_prompt :])
    return ids, labels


def loss_of(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of the answers' tokens in nats; logits are computed for those alone."""
    is_learned = labels[:, 1:] != IGNORED
    with torch.autocast("cpu", torch.bfloat16):
        states = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        logits = model.lm_head(states[is_learned])
    return cross_entropy(logits.float(), labels[:, 1:][is_learned])


def train(base: Path, out: Path, checkpoint: Path, steps: int, batch_tokens: int, lr: float) -> None:
    """Train for so many steps and write the model in bfloat16."""
    encoder, model = Encoder(out), widened_base(base)
    optimizer = Optimizer(model, lr, steps)
    first_step = optimizer.load(checkpoint) if checkpoint.exists() else 0
    model.train()
    started, num_tokens = time.monotonic(), 0
    for step, (ids, labels) in enumerate(batches(encoder, batch_tokens, TRAINING_SEED + first_step), first_step):
        if step >= steps:
            break
        loss = loss_of(model, ids, labels)
        loss.backward()
        optimizer.step(step)
        num_tokens += ids.numel()
        if step % 20 == 0:
            took = time.monotonic() - started
            print(f"step {step}/{steps} loss {loss:.4f} {took:.0f}s {num_tokens / took:.0f} tokens/s", flush=True)
        if step % 100 == 99:
            optimizer.save(checkpoint, step + 1)
    model.bfloat16().save_pretrained(out)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, default=Path("models/base"))
    parser.add_argument("--out", type=Path, default=Path("models/tools"))
    parser.add_argument("--checkpoint", type=Path, default=Path("/tmp/stratos-train/tools.safetensors"))
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch-tokens", type=int, default=6144)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    write_tokenizer(args.base, args.out)
    train(args.base, args.out, args.checkpoint, args.steps, args.batch_tokens, args.lr)


if __name__ == "__main__":
    main()
