"""Answers in OpenAI's shapes: whole bodies, stream chunks, usage.

``ChoicesRenderer`` holds what is the same for all choices of one request; ``ChatRenderer`` and
``CompletionRenderer`` differ in the shape of a choice and of its log probabilities.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from stratos.common.errors import StratosError
from stratos.core.requests.records import TokenLogprob
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.http.errors import error_body
from stratos_gateway.http.sse import DONE, encode_events
from stratos_gateway.openai.chunks import ChoiceChunk, TokenEntry, Usage, continuation_of
from stratos_gateway.openai.event_bytes import MARK, TextTemplate
from stratos_gateway.openai.prompt_logprobs import TokenName, by_token_id, finite, id_name, legacy, top_by_text
from stratos_gateway.openai.rendering import Answer, Renderer


class ChoicesRenderer(Renderer):
    """Turns chunks of choices into JSON-ready objects.

    Args:
        answer: shared fields.
        tokenizer: for the texts of tokens in log probabilities.
    """

    object_name: str
    chunk_name: str

    def __init__(self, answer: Answer, tokenizer: Tokenizer) -> None:
        super().__init__(answer)
        self._tokenizer = tokenizer
        self._templates: dict[int, TextTemplate] = {}
        """By choice, of events that have a piece of text, as nearly all have."""
        self._tells_text_alone = not (answer.wants_logprobs or answer.return_token_ids or answer.continuous_usage)
        self._num_sent_tokens = 0
        """Over all choices of a stream."""

    def body(self, chunks: Sequence[ChoiceChunk], usage: Usage) -> dict[str, Any]:
        """The whole answer at once."""
        choices = [self._whole(chunk) for chunk in sorted(chunks, key=lambda chunk: chunk.index)]
        body = {**self._head(self.object_name), "choices": choices, "usage": self._usage(usage)}
        if self.answer.num_prompt_logprobs is not None:
            self._add_prompt_logprobs(body, chunks)
        body |= continuation_of(chunks)
        return self._add_prompt_ids(body)

    def events(self, chunks: Sequence[ChoiceChunk]) -> list[dict[str, Any]]:
        """Stream events for what is new."""
        events = []
        for chunk in chunks:
            parts, num_new = self._parts(chunk), len(chunk.token_ids) + chunk.num_withheld
            for place, choice in enumerate(parts, start=1):
                if place == len(parts) and not _tells_role(choice):  # what comes before it has none of the tokens
                    self._num_sent_tokens, num_new = self._num_sent_tokens + num_new, 0
                event = self._enveloped(choice)
                events.append(self._add_prompt_ids(event) if chunk.is_first and chunk.index == 0 else event)
            self._num_sent_tokens += num_new  # those that show nothing yet are told by the next event
            if chunk.continuation:
                events[-1] |= continuation_of([chunk])
        return events

    def _enveloped(self, choice: dict[str, Any]) -> dict[str, Any]:
        event = {**self._head(self.chunk_name), "choices": [choice]}
        if self.answer.include_usage:
            event["usage"] = self._usage_so_far() if self.answer.continuous_usage else None
        return event

    def is_inner(self, chunk: ChoiceChunk) -> bool:
        """Its events tell nothing but what its text says."""
        return self._tells_text_alone and not chunk.is_first and chunk.finish_reason is None

    def stream_part(self, chunks: Sequence[ChoiceChunk]) -> bytes:
        """Events for what is new."""
        return self._event(chunks[0]) if len(chunks) == 1 else b"".join(map(self._event, chunks))

    def _event(self, chunk: ChoiceChunk) -> bytes:
        if not (chunk.text and self.is_inner(chunk)):
            return encode_events(self.events([chunk]))
        # From here on events of a choice differ in the text alone.
        if (template := self._templates.get(chunk.index)) is None:
            marked = ChoiceChunk(chunk.index, MARK, [], [], None, is_first=False)
            template = self._templates[chunk.index] = TextTemplate(encode_events(self.events([marked])))
        return template.event(chunk.text)

    def token_part(self, token_id: int, text: str) -> bytes | None:
        """The event of a token, as soon as one has been cut out that differs in the text alone."""
        template = self._templates.get(0)
        if template is None:
            return None
        return template.event(text) if text else b""

    @property
    def token_template(self) -> TextTemplate | None:
        """That of the only choice."""
        return self._templates.get(0)

    def stream_end(self, usage: Usage) -> bytes:
        """The extra event that ``include_usage`` asks for, and the mark of a whole stream."""
        if not self.answer.include_usage:
            return DONE
        return encode_events([{**self._head(self.chunk_name), "choices": [], "usage": self._usage(usage)}]) + DONE

    def stream_failure(self, error: StratosError) -> bytes:
        """The error as an event, without the mark of a whole stream."""
        return encode_events([error_body(error)])

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return usage.body()

    def _usage_so_far(self) -> dict[str, int]:
        """Tokens so far, in the shape of vLLM; those of the cache are known at the end."""
        num_prompt, num_sent = sum(map(len, self.answer.prompts)), self._num_sent_tokens
        return {"prompt_tokens": num_prompt, "completion_tokens": num_sent, "total_tokens": num_prompt + num_sent}

    @abstractmethod
    def _whole(self, chunk: ChoiceChunk) -> dict[str, Any]:
        """A finished choice."""

    @abstractmethod
    def _parts(self, chunk: ChoiceChunk) -> list[dict[str, Any]]:
        """The stream choices for a chunk; none when there is nothing to show."""

    @abstractmethod
    def _add_prompt_logprobs(self, body: dict[str, Any], chunks: Sequence[ChoiceChunk]) -> None:
        """Put ``prompt_logprobs`` where the route has them."""

    def _prompt_logprobs(self, chunk: ChoiceChunk) -> list[dict[str, Any] | None]:
        return by_token_id(chunk.prompt_logprobs, self.answer.num_prompt_logprobs or 0, self._tokenizer)

    @abstractmethod
    def _logprobs(self, chunk: ChoiceChunk) -> dict[str, Any]:
        """Log probabilities in the shape of the route."""

    def _add_prompt_ids(self, body: dict[str, Any]) -> dict[str, Any]:
        return body

    def _head(self, name: str) -> dict[str, Any]:
        answer = self.answer
        return {"id": answer.id, "object": name, "created": answer.created, "model": answer.model}

    def _finish(self, choice: dict[str, Any], chunk: ChoiceChunk) -> dict[str, Any]:
        choice["logprobs"] = self._logprobs(chunk) if self.answer.wants_logprobs else None
        choice["finish_reason"] = chunk.finish_reason
        if self.answer.return_token_ids:
            choice["token_ids"] = chunk.token_ids
        return choice

    def _is_worth_sending(self, chunk: ChoiceChunk) -> bool:
        tells_tokens = self.answer.wants_logprobs or self.answer.return_token_ids
        return bool(chunk.text or chunk.finish_reason or (tells_tokens and chunk.token_ids))


def _tells_role(choice: dict[str, Any]) -> bool:
    """It is the event that begins a choice of a chat, which shows nothing of its output."""
    return "role" in choice.get("delta", ())


def chat_logprobs(
    entries: Sequence[TokenEntry], tokenizer: Tokenizer, *, names_ids: bool = False
) -> list[dict[str, Any]]:
    """Log probabilities of tokens in the shape of the newer routes.

    Args:
        entries: of the tokens.
        tokenizer: for their texts.
        names_ids: their ids stand for the texts.
    """

    named: dict[int, tuple[str, list[int]]] = {}  # likely tokens of many places are the same ones

    def name(token_id: int) -> tuple[str, list[int]]:
        # OpenAI marks parts of characters in the older route only.
        text = id_name(token_id) if names_ids else tokenizer.token_text(token_id, "")
        return named.setdefault(token_id, (text, list(tokenizer.token_bytes(token_id))))

    def shown(token: TokenLogprob) -> dict[str, Any]:
        text, raw = named.get(token.token_id) or name(token.token_id)
        return {"token": text, "logprob": finite(token.logprob), "bytes": raw}

    return [{**shown(e.logprobs.sampled), "top_logprobs": [shown(t) for t in e.logprobs.top]} for e in entries]


class ChatRenderer(ChoicesRenderer):
    """/v1/chat/completions; each choice begins with the text ``echo``, as that of the message that it goes on with."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def __init__(self, answer: Answer, tokenizer: Tokenizer, echo: str = "") -> None:
        super().__init__(answer, tokenizer)
        self._echo = echo

    def _whole(self, chunk: ChoiceChunk) -> dict[str, Any]:
        message = {"role": "assistant", "content": self._echo + chunk.text, "refusal": None}
        return self._finish({"index": chunk.index, "message": message}, chunk)

    def _parts(self, chunk: ChoiceChunk) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        if chunk.is_first:
            delta = {"role": "assistant", "content": self._echo}
            parts.append({"index": chunk.index, "delta": delta, "logprobs": None, "finish_reason": None})
        if self._is_worth_sending(chunk):
            parts.append(self._finish({"index": chunk.index, "delta": {"content": chunk.text}}, chunk))
        return parts

    def _add_prompt_ids(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.answer.return_token_ids:
            body["prompt_token_ids"] = self.answer.prompts[0]
        return body

    def _add_prompt_logprobs(self, body: dict[str, Any], chunks: Sequence[ChoiceChunk]) -> None:
        body["prompt_logprobs"] = self._prompt_logprobs(chunks[0])

    def _logprobs(self, chunk: ChoiceChunk) -> dict[str, Any]:
        content = chat_logprobs(chunk.entries, self._tokenizer, names_ids=self.answer.names_token_ids)
        return {"content": content, "refusal": None}


class CompletionRenderer(ChoicesRenderer):
    """/v1/completions; with ``echoes`` each choice begins with the text of its prompt."""

    object_name = chunk_name = "text_completion"

    def __init__(self, answer: Answer, tokenizer: Tokenizer, echoes: Sequence[str] = ()) -> None:
        super().__init__(answer, tokenizer)
        self._echoes = echoes

    def _whole(self, chunk: ChoiceChunk) -> dict[str, Any]:
        choice = {"index": chunk.index, "text": self._prefix(chunk) + chunk.text}
        return self._add_choice_prompt(self._finish(choice, chunk), chunk)

    def _parts(self, chunk: ChoiceChunk) -> list[dict[str, Any]]:
        prefix = self._prefix(chunk)
        if not (prefix or self._is_worth_sending(chunk)):
            return []
        choice = self._finish({"index": chunk.index, "text": prefix + chunk.text}, chunk)
        return [self._add_choice_prompt(choice, chunk)]

    def _echo(self, chunk: ChoiceChunk) -> str:
        return self._echoes[chunk.index // self.answer.num_choices] if self._echoes else ""

    def _prefix(self, chunk: ChoiceChunk) -> str:
        return self._echo(chunk) if chunk.is_first else ""

    def _prompt_ids(self, chunk: ChoiceChunk) -> Sequence[int]:
        return self.answer.prompts[chunk.index // self.answer.num_choices]

    def _add_choice_prompt(self, choice: dict[str, Any], chunk: ChoiceChunk) -> dict[str, Any]:
        if self.answer.return_token_ids and chunk.is_first:
            choice["prompt_token_ids"] = self._prompt_ids(chunk)
        return choice

    def _add_prompt_logprobs(self, body: dict[str, Any], chunks: Sequence[ChoiceChunk]) -> None:
        for choice, chunk in zip(body["choices"], sorted(chunks, key=lambda chunk: chunk.index), strict=True):
            choice["prompt_logprobs"] = self._prompt_logprobs(chunk)

    def _logprobs(self, chunk: ChoiceChunk) -> dict[str, Any]:
        name: TokenName = id_name if self.answer.names_token_ids else self._tokenizer.token_text
        entries, num_top = chunk.entries, self.answer.num_logprobs or 0
        shift = len(self._echo(chunk))
        output: dict[str, list[Any]] = {
            "tokens": [name(e.logprobs.sampled.token_id) for e in entries],
            "token_logprobs": [finite(e.logprobs.sampled.logprob) for e in entries],
            "top_logprobs": [top_by_text(e.logprobs, num_top, name) for e in entries],
            "text_offset": [e.text_offset + shift for e in entries],
        }
        if not (self.answer.echoes_logprobs and chunk.is_first):
            return output
        prompt_ids, tokenizer = self._prompt_ids(chunk), self._tokenizer
        prompt = legacy(prompt_ids, self._echo(chunk), chunk.prompt_logprobs, num_top, tokenizer, name)
        return {key: prompt[key] + output[key] for key in output}
