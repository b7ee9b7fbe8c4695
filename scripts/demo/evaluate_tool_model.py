"""Evaluate the tool model on conversations that it has not seen: share of answers whose calls are right, exactly.

    python -m scripts.demo.evaluate_tool_model models/tools --out models/held_out_tools.json

Greedy, in bfloat16 as workers run it, by ``transformers``; outputs are read by the gateway's own parser.  A case is
right when names and arguments of all calls are equal to those that are due, in their order, and there is none where
none is due.  Answers have to be equal word for word.  Values and made-up functions are those that training never has.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from transformers import LlamaForCausalLM

from scripts.demo.tool_corpus import KINDS, Conversation, conversations
from scripts.demo.tool_encoding import Encoder, Judge
from stratos.text.output.chat_format import chat_format

SEED = 1_000_003
MAX_NEW_TOKENS = 250
ROWS = 32


@torch.inference_mode()
def outputs(model: LlamaForCausalLM, encoder: Encoder, rows: Sequence[Conversation]) -> list[str]:
    """Greedy outputs, without the mark of the end, in batches padded before their beginnings."""
    texts = list[str]()
    for start in range(0, len(rows), ROWS):
        prompts = [encoder.prompt(row) for row in rows[start : start + ROWS]]
        length = max(map(len, prompts))
        ids = torch.tensor([[0] * (length - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        found = cast("Any", model).generate(ids, attention_mask=mask, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
        for row in found[:, length:].tolist():
            ends = [row.index(end) for end in (0, 4) if end in row]
            texts.append(encoder.tokenizer.decode(row[: min(ends, default=len(row))], skip_special=False))
    return texts


def evaluate(folder: Path, cases: int, *, show: bool) -> dict[str, Any]:
    """Shares by kind of conversation."""
    encoder = Encoder(folder)
    judge = Judge(chat_format((folder / "chat_template.jinja").read_text(encoding="utf-8")))
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    table: dict[str, Any] = {}
    for number, kind in enumerate(KINDS):
        rows = list(islice(conversations(SEED + number, is_held_out=True, kind=kind), cases))
        texts = outputs(model, encoder, rows)
        verdicts = [judge.verdict(row, text) for row, text in zip(rows, texts, strict=True)]
        table[kind] = {name: round(sum(v[name] for v in verdicts) / cases, 3) for name in verdicts[0]}
        print(kind, table[kind], flush=True)
        for row, text, verdict in zip(rows, texts, verdicts, strict=True):
            if show and not verdict["right"]:
                print(f"  asked {row.messages[-1].content!r}\n  due {row.answer!r}\n  got {text!r}")
    return {"cases_of_each_kind": cases, "seed": SEED, "torch": torch.__version__, "share": table}


def main() -> None:
    """Parse the command line and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", action="store_true", help="print the cases that are wrong")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = evaluate(args.folder, args.cases, show=args.show)
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
