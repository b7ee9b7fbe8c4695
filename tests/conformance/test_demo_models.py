"""The shipped models are what the README says: loadable by transformers and peft, and each adapter owns its slice."""

import math

import pytest
import torch
from tokenizers import Tokenizer

from tests.support.paths import ROOT

pytestmark = pytest.mark.timeout(600)  # 16 s of CPU in one fixture, however busy the machine is
MODELS = ROOT / "models"
SLICES = {"c-headers": "headers", "reference-prose": "prose", "unit-tests": "unit_tests"}
CONTEXT, NUM_WINDOWS = 512, 2


@pytest.fixture(scope="module")
def perplexity():
    """Perplexity by (model or adapter, slice), in float32."""
    from peft import PeftModel
    from transformers import LlamaForCausalLM

    tokenizer = Tokenizer.from_file(str(MODELS / "base" / "tokenizer.json"))
    windows = {}
    for name in SLICES.values():
        ids = tokenizer.encode((ROOT / f"tests/fixtures/held_out/{name}.txt").read_text(), add_special_tokens=False).ids
        windows[name] = torch.tensor(ids[: CONTEXT * NUM_WINDOWS]).view(NUM_WINDOWS, CONTEXT)
    table = {}
    model = LlamaForCausalLM.from_pretrained(MODELS / "base", dtype=torch.float32)
    for adapter in (None, *SLICES):
        if adapter:
            model = PeftModel.from_pretrained(model, MODELS / "adapters" / adapter)
        for name, ids in windows.items():
            with torch.inference_mode():
                table[adapter, name] = math.exp(model(input_ids=ids, labels=ids).loss.item())
        model = model.unload() if adapter else model
    return table


@pytest.mark.parametrize("adapter", SLICES)
@pytest.mark.slow
def test_adapter_owns_its_slice(perplexity, adapter):
    own = SLICES[adapter]
    assert perplexity[adapter, own] <= 0.7 * perplexity[None, own]
    for other in SLICES:
        if other != adapter:
            assert perplexity[adapter, own] < perplexity[other, own]


def test_all_models_together_are_small():
    assert sum(path.stat().st_size for path in MODELS.rglob("*") if path.is_file()) <= 30 * 2**20


def test_draft_shares_the_tokenizer():
    assert (MODELS / "draft/tokenizer.json").read_bytes() == (MODELS / "base/tokenizer.json").read_bytes()


def test_base_writes_what_it_learned():
    """Greedy completion of a documented function is Python with a docstring."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODELS / "base")
    model = AutoModelForCausalLM.from_pretrained(MODELS / "base", dtype=torch.float32)
    question = [{"role": "user", "content": "Write the function get_size. Return the size of the file."}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    text = tokenizer.decode(model.generate(**ids, max_new_tokens=60, do_sample=False)[0, ids["input_ids"].shape[1] :])
    assert text.startswith("def get_size(")
    assert '"""' in text
    compile(text.removesuffix("<|end|>"), "completion", "exec")
