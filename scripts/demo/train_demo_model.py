"""Train the demo models that ship with StratosServe: base, draft and three LoRA adapters.

    python -m scripts.demo.train_demo_model all --out models

Each stage writes its result and can be run alone (``tokenizer``, ``base``, ``draft``, an adapter's name,
``report``); ``base`` and ``draft`` go on from their newest checkpoint.  Matrices are trained with
Muon, everything else with AdamW, under bf16 autocast.  CPU only; about an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from scripts.demo.demo_corpus import ASSISTANT, END, SPECIAL_TOKENS, STOP, SYSTEM, USER, Part, build_corpus

VOCAB_SIZE = 4096
MAX_CONTEXT = 4096
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
ADAPTERS = {
    "c-headers": ("headers", 8, 900_000),
    "reference-prose": ("prose", 16, 900_000),
    "unit-tests": ("tests", 32, 1_800_000),
}
"""Adapter -> part of the corpus, rank, training tokens."""
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch of training: ``tokens`` tokens in batches of ``batch`` rows of ``context``."""

    tokens: int
    batch: int
    context: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """Model shape and schedule."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    phases: tuple[Phase, ...]
    lr: float = 4e-3

    def config(self) -> LlamaConfig:
        """The Hugging Face configuration of this shape (tied embeddings, bf16)."""
        return LlamaConfig(
            vocab_size=VOCAB_SIZE, hidden_size=self.hidden, num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads, head_dim=32, intermediate_size=self.intermediate,
            max_position_embeddings=MAX_CONTEXT, rms_norm_eps=1e-5, tie_word_embeddings=True,
            bos_token_id=0, eos_token_id=[0, 4], pad_token_id=0,
        )  # fmt: skip


RECIPES = {
    "base": Recipe(256, 6, 8, 4, 704, (Phase(3_000_000, 16, 256), Phase(3_400_000, 8, 512), Phase(500_000, 2, 2048))),
    "draft": Recipe(128, 3, 4, 2, 352, (Phase(3_000_000, 16, 256), Phase(300_000, 2, 1024))),
}


def train_tokenizer(corpus: dict[str, Part], out: Path) -> None:
    """Byte-level BPE over the base part, with the chat markers as special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=SPECIAL_TOKENS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(corpus["base"].train, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=STOP, pad_token=END, model_max_length=MAX_CONTEXT,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT], clean_up_tokenization_spaces=False,
    )  # fmt: skip
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(out)


def encode(tokenizer: Tokenizer, documents: list[str], seed: int = 0) -> torch.Tensor:
    """Shuffle documents and join their ids, each after an end-of-text mark: int64 [tokens]."""
    order = torch.randperm(len(documents), generator=torch.Generator().manual_seed(seed)).tolist()
    ids: list[int] = []
    for encoding in tokenizer.encode_batch([documents[i] for i in order], add_special_tokens=False):
        ids.append(0)
        ids.extend(encoding.ids)
    return torch.tensor(ids)


def batches(ids: torch.Tensor, phase: Phase, offset: int) -> Iterator[torch.Tensor]:
    """Consecutive windows of the stream at evenly spread starts: int64 [batch, context + 1]."""
    generator = torch.Generator().manual_seed(offset)
    for _ in range(max(1, phase.tokens // (phase.batch * phase.context))):
        starts = torch.randint(0, len(ids) - phase.context - 1, (phase.batch,), generator=generator)
        yield torch.stack([ids[s : s + phase.context + 1] for s in starts.tolist()])


def loss_of(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Mean next-token cross entropy of ``rows`` in nats, computed in float32 from bf16 logits."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, ids: torch.Tensor, context: int = 512, windows: int = 64) -> float:
    """Mean loss over the first ``windows`` disjoint windows of a held-out stream, in nats a token."""
    model.eval()
    count = min(windows, (len(ids) - 1) // context)
    losses = [loss_of(model, ids[i * context : (i + 1) * context + 1][None]).item() for i in range(count)]
    model.train()
    return sum(losses) / len(losses)


class Optimizer:
    """Muon for matrices, AdamW for embeddings and vectors, one warm-up / linear-decay schedule."""

    def __init__(self, model: torch.nn.Module, lr: float, total_steps: int, matrices_only_muon: bool = True) -> None:
        params = [p for p in model.named_parameters() if p[1].requires_grad]
        matrices = [p for n, p in params if p.ndim == 2 and "embed" not in n and matrices_only_muon]
        chosen = {id(p) for p in matrices}
        rest = [p for _, p in params if id(p) not in chosen]
        self.parts: list[torch.optim.Optimizer] = [torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)]
        if matrices:
            self.parts.append(torch.optim.Muon(matrices, lr=lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"))
        self.base_lr, self.total_steps, self.params = lr, total_steps, [p for _, p in params]

    def step(self, step: int) -> None:
        """Apply the gradients of step number ``step`` and clear them."""
        scale = min(1.0, (step + 1) / 40, 1.2 * (1 - step / self.total_steps) + 0.01)
        torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = self.base_lr * scale
            part.step()
            part.zero_grad(set_to_none=True)

    def _states(self) -> list[dict[str, torch.Tensor]]:
        """The optimizer state of each parameter, in the order of ``self.params``."""
        return [next((part.state[p] for part in self.parts if p in part.state), {}) for p in self.params]

    def save(self, path: Path, step: int) -> None:
        """Write parameters, optimizer state and the number of steps done to a safetensors file."""
        tensors = {f"param.{i}": p.detach() for i, p in enumerate(self.params)}
        for i, state in enumerate(self._states()):
            tensors |= {f"state.{i}.{key}": value for key, value in state.items()}
        save_file(tensors, path, metadata={"step": str(step)})

    @torch.no_grad()
    def load(self, path: Path) -> int:
        """Read back what ``save`` wrote; returns the number of steps done."""
        with safe_open(path, framework="pt") as file:
            for i, p in enumerate(self.params):
                p.copy_(file.get_tensor(f"param.{i}"))
            for key in file.keys():  # noqa: SIM118 - not a dict
                if key.startswith("state."):
                    _, i, name = key.split(".")
                    param = self.params[int(i)]
                    part = next(o for o in self.parts if any(param is q for g in o.param_groups for q in g["params"]))
                    part.state[param][name] = file.get_tensor(key)
            return int(file.metadata()["step"])


def train_model(name: str, corpus: dict[str, Part], tokenizer: Tokenizer, out: Path, checkpoints: Path) -> None:
    """Train one model of ``RECIPES`` with a checkpoint after each quarter of a phase."""
    recipe = RECIPES[name]
    torch.manual_seed(1)
    model = LlamaForCausalLM(recipe.config())
    ids, held = encode(tokenizer, corpus["base"].train), encode(tokenizer, corpus["base"].held_out)
    rows = [(i, row) for i, phase in enumerate(recipe.phases) for row in batches(ids, phase, i)]
    optimizer = Optimizer(model, recipe.lr, len(rows))
    checkpoint = checkpoints / f"{name}.safetensors"
    first_step = optimizer.load(checkpoint) if checkpoint.exists() else 0
    started = time.monotonic()
    for step in range(first_step, len(rows)):
        loss = loss_of(model, rows[step][1])
        loss.backward()
        optimizer.step(step)
        if step % 50 == 0:
            print(
                f"{name} step {step}/{len(rows)} loss {loss.item():.3f} {time.monotonic() - started:.0f}s", flush=True
            )
        if step % 200 == 199:
            optimizer.save(checkpoint, step + 1)
    print(f"{name} held-out loss {held_out_loss(model, held):.4f}", flush=True)
    target = out / name
    model.bfloat16().save_pretrained(target)
    for path in (out / "tokenizer").glob("*"):
        (target / path.name).write_bytes(path.read_bytes())


def train_adapter(name: str, corpus: dict[str, Part], tokenizer: Tokenizer, out: Path) -> None:
    """Train one LoRA adapter on its slice, on top of the finished base."""
    from peft import LoraConfig, get_peft_model

    part, rank, tokens = ADAPTERS[name]
    torch.manual_seed(2)
    base = LlamaForCausalLM.from_pretrained(out / "base", dtype=torch.float32)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=TARGETS, lora_dropout=0.0, task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    ids = encode(tokenizer, corpus[part].train)
    phase = Phase(tokens, 8, 512)
    steps = tokens // (phase.batch * phase.context)
    optimizer = Optimizer(model, 4e-3, steps, matrices_only_muon=False)
    started = time.monotonic()
    for step, rows in enumerate(batches(ids, phase, 7)):
        loss = loss_of(model, rows)
        loss.backward()
        optimizer.step(step)
        if step % 25 == 0:
            print(f"{name} step {step}/{steps} loss {loss.item():.3f} {time.monotonic() - started:.0f}s", flush=True)
    model.to(torch.bfloat16)
    model.peft_config["default"].base_model_name_or_path = "base"
    model.save_pretrained(str(out / "adapters" / name))
    (out / "adapters" / name / "README.md").unlink(missing_ok=True)
    (out / "adapters" / name / "adapter_model.safetensors").chmod(0o644)


def report(corpus: dict[str, Part], tokenizer: Tokenizer, out: Path) -> None:
    """Write ``held_out.json``: perplexity of the base and of every adapter on every part."""
    from peft import PeftModel

    streams = {name: encode(tokenizer, part.held_out) for name, part in corpus.items()}
    table: dict[str, dict[str, float]] = {}
    for name in ("base", "draft", *ADAPTERS):
        source = out / (name if name == "draft" else "base")
        model: torch.nn.Module = LlamaForCausalLM.from_pretrained(source, dtype=torch.float32)
        if name in ADAPTERS:
            model = PeftModel.from_pretrained(model, out / "adapters" / name)
        table[name] = {part: round(math.exp(held_out_loss(model, ids)), 3) for part, ids in streams.items()}
        print(name, table[name], flush=True)
    (out / "held_out.json").write_text(json.dumps({"held_out_perplexity": table}, indent=2) + "\n")


def main() -> None:
    """Parse the command line and run the stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["all", "tokenizer", *RECIPES, *ADAPTERS, "report"])
    parser.add_argument("--out", type=Path, default=Path("models"))
    parser.add_argument("--checkpoints", type=Path, default=Path("/tmp/stratos-train"))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.checkpoints.mkdir(parents=True, exist_ok=True)
    corpus = build_corpus()
    stages = ["tokenizer", *RECIPES, *ADAPTERS, "report"] if args.stage == "all" else [args.stage]
    if "tokenizer" in stages:
        train_tokenizer(corpus, args.out / "tokenizer")
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer" / "tokenizer.json"))
    for name in RECIPES:
        if name in stages:
            train_model(name, corpus, tokenizer, args.out, args.checkpoints)
    for name in ADAPTERS:
        if name in stages:
            train_adapter(name, corpus, tokenizer, args.out)
    if "report" in stages:
        report(corpus, tokenizer, args.out)


if __name__ == "__main__":
    main()
