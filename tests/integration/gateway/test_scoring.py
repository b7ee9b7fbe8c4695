"""Scores and rankings by a decoder: the numbers of transformers, by a random model to which no word is likely."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.api.worker.v1 import decode_pb2
from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.model_files import read_json
from stratos.text.chat_template import ChatMessage, ChatTemplate
from stratos_gateway.models.score_head import QWEN3_TEMPLATE, Pair, ScoreHead, read_score_head
from tests.support.paths import BASE_MODEL
from tests.support.reference.shipped_model import VOCAB_SIZE, shipped_tokenizer
from tests.support.reference.tiny_models import save_tiny_llama
from tests.support.waiting import eventually
from tests.support.worlds.batch_calls import QUICK, ended, is_billed, rows_of, submit
from tests.support.worlds.gateway_world import World, gateway_world
from tests.support.worlds.stream_world import stream_worlds

NO, YES = "0", "1"
TEMPLATE = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}answer:"
QUERY = "who wrote it?"
DOCUMENTS = ["a cat sat on the mat", "it was written by hand", "x = y + 1", "a", "the author is unknown"]


class Reference:
    """The model as transformers has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[tuple[int, ...], torch.Tensor] = {}
        self.model = save_tiny_llama(folder, vocab_size=VOCAB_SIZE)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(BASE_MODEL / name, folder / name)
        config = read_json(folder / "config.json")
        (folder / "config.json").write_text(json.dumps({**config, "classifier_from_token": [NO, YES]}))
        (folder / "score_template.jinja").write_text(TEMPLATE)
        head = read_score_head(folder, read_json(folder / "config.json"), shipped_tokenizer())
        assert head is not None
        self.head: ScoreHead = head

    def logits(self, ids: list[int]) -> torch.Tensor:
        if tuple(ids) not in self.known:
            with torch.no_grad():
                self.known[tuple(ids)] = self.model(torch.tensor([ids])).logits[0, -1].float()
        return self.known[tuple(ids)]

    def difference(self, query: str, document: str, instruction: str = "") -> float:
        logits = self.logits(self.head.encode(Pair(query, document, instruction)))
        return float(logits[self.head.yes_id] - logits[self.head.no_id])

    def score(self, query: str, document: str, instruction: str = "") -> float:
        return float(torch.sigmoid(torch.tensor(self.difference(query, document, instruction))))

    def logprobs_of(self, submit: decode_pb2.Submit) -> list[float]:
        values: list[float] = self.logits(list(submit.prompt_ids)).log_softmax(0).tolist()
        return values

    def script(self, submit: decode_pb2.Submit, choice: int) -> list[int]:
        logprobs = self.logprobs_of(submit)
        return [max(submit.sampling.allowed_token_ids, key=lambda token: logprobs[token])]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("reranker"))


@pytest.fixture
async def world(reference: Reference) -> AsyncIterator[World]:
    async with gateway_world(model={"path": reference.folder, "name": "base"}) as made:
        made.worker.script, made.worker.logprobs_of = reference.script, reference.logprobs_of
        yield made


async def post(world: World, route: str, **body: Any) -> dict[str, Any]:
    answer = await world.http.post(route, json={"model": "base", **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def refused(world: World, route: str, **body: Any) -> tuple[str | None, str]:
    answer = await world.http.post(route, json={"model": "base", **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["code"]


async def test_scores_are_those_of_transformers(world: World, reference: Reference) -> None:
    answer = await post(world, "/v1/score", text_1=QUERY, text_2=DOCUMENTS)
    expected = [reference.score(QUERY, document) for document in DOCUMENTS]
    assert [row["score"] for row in answer["data"]] == pytest.approx(expected, abs=1e-6)
    assert [row["index"] for row in answer["data"]] == list(range(len(DOCUMENTS)))
    prompts = [reference.head.encode(Pair(QUERY, document)) for document in DOCUMENTS]
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts)), "a prompt that ran twice counts once"
    assert any(len(submit.sampling.allowed_token_ids) == 1 for submit in world.worker.submits), "the rare word"
    raw = await post(world, "/v1/score", queries=[QUERY], documents=DOCUMENTS[0], use_activation=False)
    assert raw["data"][0]["score"] == pytest.approx(reference.difference(QUERY, DOCUMENTS[0]), abs=1e-5)


async def test_pairs_are_scored_one_by_one(world: World, reference: Reference) -> None:
    queries, documents = ["a", "b"], ["c", "d"]
    answer = await post(world, "/v1/score", data_1=queries, data_2=documents, instruction="be kind")
    expected = [reference.score(q, d, "be kind") for q, d in zip(queries, documents, strict=True)]
    assert [row["score"] for row in answer["data"]] == pytest.approx(expected, abs=1e-6)


async def test_the_best_documents_come_first(world: World, reference: Reference) -> None:
    scores = [reference.score(QUERY, document) for document in DOCUMENTS]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    answer = await post(world, "/v1/rerank", query=QUERY, documents=[{"text": text} for text in DOCUMENTS], top_n=3)
    assert [row["index"] for row in answer["results"]] == order[:3]
    assert [row["document"]["text"] for row in answer["results"]] == [DOCUMENTS[index] for index in order[:3]]
    assert answer["results"][0]["relevance_score"] == pytest.approx(max(scores), abs=1e-6)
    bare = await post(world, "/v1/rerank", query=QUERY, documents=DOCUMENTS, return_documents=False)
    assert [sorted(row) for row in bare["results"]] == [["index", "relevance_score"]] * len(DOCUMENTS)


async def test_a_word_that_is_among_the_likely_ones_costs_no_second_run(world: World, reference: Reference) -> None:
    likely = [-20.0] * VOCAB_SIZE
    likely[reference.head.yes_id], likely[reference.head.no_id] = -0.25, -2.25
    world.worker.logprobs_of = lambda submit: likely
    world.worker.script = lambda submit, choice: [reference.head.yes_id]
    answer = await post(world, "/v1/score", text_1="a", text_2=["b", "c"])
    assert [row["score"] for row in answer["data"]] == pytest.approx([1 / (1 + 2.718281828**-2)] * 2, abs=1e-6)
    assert world.placed == 2


async def test_what_cannot_be_scored_is_refused_by_name(world: World) -> None:
    score, rerank = "/v1/score", "/v1/rerank"
    assert (await refused(world, score, text_1=["a", "b"], text_2=["c"]))[0] == "text_1"
    assert (await refused(world, score, text_1="a"))[0] == "text_2"
    assert (await refused(world, score, text_1="a", text_2=["b"] * 65))[0] == "text_2"
    assert (await refused(world, score, text_1="a", text_2="b", temperature=1))[0] == "temperature"
    assert (await refused(world, rerank, query=5, documents=["a"]))[0] == "query"
    assert (await refused(world, rerank, query="a", documents=["b"], top_n=-1))[0] == "top_n"
    assert (await refused(world, rerank, query="a", documents=[{"title": "b"}]))[0] == "documents.title"
    assert await refused(world, rerank, query="a", documents=["b " * 9000]) == ("documents", "context_length_exceeded")
    assert world.placed == 0


async def test_spellings_of_special_tokens_in_a_document_are_text(reference: Reference) -> None:
    special = next(iter(shipped_tokenizer().special_tokens))
    ids = reference.head.encode(Pair("a", f"b {special} c"))
    assert shipped_tokenizer().special_tokens[special] not in ids[1:]


async def test_a_model_without_a_head_refuses() -> None:
    async with gateway_world() as world:
        assert await refused(world, "/v1/score", text_1="a", text_2="b") == ("model", "unsupported_operation")


@pytest.mark.parametrize("words", [["no"], "no", [NO, NO], ["nothing at all", YES]])
def test_words_that_cannot_be_judged_by_stop_the_start(tmp_path: Path, words: Any) -> None:
    with pytest.raises(InvalidCheckpoint, match="classifier_from_token"):
        read_score_head(tmp_path, {"classifier_from_token": words}, shipped_tokenizer())


def test_a_head_needs_a_prompt(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match="score_template"):
        read_score_head(tmp_path, {"classifier_from_token": [NO, YES]}, shipped_tokenizer())


def test_the_prompt_of_qwen3_reranker_is_the_published_one() -> None:
    tokenizer = shipped_tokenizer()
    ids = ChatTemplate(QWEN3_TEMPLATE, tokenizer).encode([ChatMessage("query", "Q"), ChatMessage("document", "D")])
    assert tokenizer.decode(ids, skip_special=False) == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        "<Query>: Q\n<Document>: D<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


async def test_scores_come_again_with_their_key(reference: Reference, redis_url: str, tmp_path: Path) -> None:
    model, body = {"path": reference.folder, "name": "base"}, {"model": "base", "text_1": QUERY, "text_2": DOCUMENTS}
    async with stream_worlds(redis_url, tmp_path, lease_s=600.0, model=model) as worlds:
        answers = []
        for asked in worlds:
            asked.worker.script, asked.worker.logprobs_of = reference.script, reference.logprobs_of
            headers = {"authorization": f"Bearer {asked.keys['user']}", "idempotency-key": "scores"}
            answers.append(await asked.public.post("/v1/score", json=body, headers=headers))
        assert [answer.headers.get("idempotent-replayed") for answer in answers] == [None, "true"]
        assert answers[0].status_code == 200, answers[0].text
        assert (answers[0].content, worlds[1].worker.submits) == (answers[1].content, [])


async def test_lines_of_a_batch_are_scored_and_ranked_and_each_is_billed_once(
    reference: Reference, redis_url: str, tmp_path: Path
) -> None:
    """The second line's other word is asked for in a run of its own, under an id of its own, which is not billed."""
    model, scores = {"path": reference.folder, "name": "base"}, [reference.score(QUERY, text) for text in DOCUMENTS]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/score": {"text_1": QUERY, "text_2": DOCUMENTS},
        "/v1/rerank": {"query": QUERY, "documents": DOCUMENTS},
    }
    async with stream_worlds(redis_url, tmp_path, model=model, batches=QUICK) as [one, two]:
        for world in (one, two):
            world.worker.script, world.worker.logprobs_of = reference.script, reference.logprobs_of
        found = {}
        for place, (url, body) in enumerate(bodies.items(), 1):
            line = {"custom_id": "c0", "method": "POST", "url": url, "body": {"model": "base", **body}}
            begun = await submit(one, [line, {**line, "custom_id": "c1", "body": {"model": "base"}}])
            over = await ended(two, begun["id"])
            [answer], [refusal] = [await rows_of(two, over[name]) for name in ("output_file_id", "error_file_id")]
            assert (over["status"], answer["custom_id"], refusal["custom_id"]) == ("completed", "c0", "c1")
            assert refusal["response"]["status_code"] == 400
            found[url] = answer["response"]["body"]
            await eventually(partial(is_billed, one, place * len(DOCUMENTS)), "each pair is billed once")
        assert [row["score"] for row in found["/v1/score"]["data"]] == pytest.approx(scores, abs=1e-6)
        ranked = sorted(range(len(scores)), key=lambda index: -scores[index])
        assert [row["index"] for row in found["/v1/rerank"]["results"]] == ranked
        submits = [submit for world in (one, two) for submit in world.worker.submits]
        assert any(not submit.HasField("meter") for submit in submits), "a word was asked for"
        assert len({submit.request_id for submit in submits}) == len(submits)
