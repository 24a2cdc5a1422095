"""Answers of Gemini: the chunks of a stream as our own events.

Sources: Gemini API reference, "GenerateContentResponse"; documentation, "Code execution", "Grounding", "URL context".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pydantic
from pydantic import alias_generators

from tarsy.llm import provider, tool_calls
from tarsy.transcript import messages

_COMPLETE = frozenset({"STOP", "MAX_TOKENS"})
_PAGE_READ = "URL_RETRIEVAL_STATUS_SUCCESS"
_SIZE_MAX = 64 * 1024 * 1024
"""Characters of the parts and sources of one answer, which are kept until its end."""
_PARTS_MAX = 100_000
"""Parts and sources of one answer."""


class _Wire(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(alias_generator=alias_generators.to_camel, extra="allow")


class _FunctionCall(_Wire):
    name: str | None = None
    args: dict[str, Any] | None = None


class _ExecutableCode(_Wire):
    code: str | None = None
    language: str | None = None


class _CodeExecutionResult(_Wire):
    outcome: str | None = None
    output: str | None = None


class _Part(_Wire):
    """A part of an answer, with its unknown fields: it goes back as it came."""

    text: str | None = None
    thought: bool | None = None
    function_call: _FunctionCall | None = None
    executable_code: _ExecutableCode | None = None
    code_execution_result: _CodeExecutionResult | None = None


class _Content(_Wire):
    parts: list[_Part] | None = None


class _Web(_Wire):
    uri: str | None = None
    title: str | None = None


class _GroundingChunk(_Wire):
    web: _Web | None = None


class _GroundingMetadata(_Wire):
    web_search_queries: list[str] | None = None
    grounding_chunks: list[_GroundingChunk] | None = None


class _UrlMetadata(_Wire):
    retrieved_url: str | None = None
    url_retrieval_status: str | None = None


class _UrlContextMetadata(_Wire):
    url_metadata: list[_UrlMetadata] | None = None


class _Candidate(_Wire):
    content: _Content | None = None
    finish_reason: str | None = None
    grounding_metadata: _GroundingMetadata | None = None
    url_context_metadata: _UrlContextMetadata | None = None


class _PromptFeedback(_Wire):
    block_reason: str | None = None


class _UsageMetadata(_Wire):
    prompt_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    total_token_count: int | None = None


class _Chunk(_Wire):
    """The fields of a chunk that are read."""

    candidates: list[_Candidate] | None = None
    prompt_feedback: _PromptFeedback | None = None
    usage_metadata: _UsageMetadata | None = None
    model_version: object = None
    response_id: object = None


class Answer:
    """One answer as its chunks arrive; a malformed one raises ProviderError, or an error of pydantic or json."""

    def __init__(self, tools: Mapping[str, str]) -> None:
        """`tools` are the names of the request's tools, by their names on the wire."""
        self._tools = tools
        self._parts: list[dict[str, Any]] = []
        """The parts with content, as they came, to be sent back. A part without text may have a signature."""
        self._finish: str | None = None
        self._response = provider.Response()
        self._code: _ExecutableCode | None = None
        self._queries: dict[str, None] = {}
        self._search_results: dict[str, provider.Source] = {}
        self._pages: dict[str, provider.Source] = {}
        self._size = 0

    def add(self, received: object) -> Iterator[provider.StreamEvent]:
        """Yield the events of the next chunk, which is JSON."""
        chunk = _Chunk.model_validate(received)
        candidate = chunk.candidates[0] if chunk.candidates else _Candidate()
        for part in (candidate.content and candidate.content.parts) or ():
            self._add_part(part)
            yield from self._events(part)
        self._add_grounding(candidate)
        self._check_bounds()
        response = provider.Response.from_json(chunk.model_version, chunk.response_id)
        if response != self._response:
            self._response = response
            yield response
        if usage := chunk.usage_metadata:
            yield provider.Usage(_usage(usage))
        if chunk.prompt_feedback and (reason := chunk.prompt_feedback.block_reason):
            raise provider.FatalError(f"the prompt was blocked: {reason}", code=reason)
        self._finish = candidate.finish_reason or self._finish

    def end(self) -> Iterator[provider.StreamEvent]:
        """Yield the last events of a stream; without a `Finish` the answer was cut."""
        if self._finish is not None and self._finish not in _COMPLETE:
            raise provider.RejectedError(f"the model stopped with {self._finish}", code=self._finish)
        if self._finish is None:
            return
        yield from self._code_execution(_CodeExecutionResult())
        if self._queries or self._search_results:
            yield provider.Grounding("google_search", tuple(self._search_results.values()), tuple(self._queries))
        if self._pages:
            yield provider.Grounding("url_context", tuple(self._pages.values()))
        yield provider.Finish(self._parts)

    def _add_part(self, part: _Part) -> None:
        try:
            wire_part = part.model_dump(by_alias=True, exclude_none=True)
            if others := wire_part.keys() - {"text", "thought"}:
                self._size += sum(len(json.dumps(wire_part[key])) for key in others)
        except (ValueError, RecursionError) as error:
            raise provider.RejectedError(f"the answer is nested too deep: {error}", code="too_deep") from error
        if others or part.text:
            self._size += len(part.text or "")
            self._parts.append(wire_part)
            self._check_bounds()

    def _check_bounds(self) -> None:
        if self._size > _SIZE_MAX:
            raise provider.RejectedError(f"the answer is longer than {_SIZE_MAX} characters", code="too_long")
        if len(self._parts) + len(self._queries) + len(self._search_results) + len(self._pages) > _PARTS_MAX:
            raise provider.RejectedError(f"the answer has more than {_PARTS_MAX} parts", code="too_many")

    def _events(self, part: _Part) -> Iterator[provider.StreamEvent]:
        if part.function_call is not None:
            wire = part.function_call.name or ""
            name = self._tools.get(wire, tool_calls.tool_name(wire))
            yield provider.Call(name, json.dumps(part.function_call.args or {}, ensure_ascii=False))
        elif part.executable_code is not None:
            yield from self._code_execution(_CodeExecutionResult())  # earlier code without a result
            self._code = part.executable_code
        elif part.code_execution_result is not None:
            self._code = self._code or _ExecutableCode()
            yield from self._code_execution(part.code_execution_result)
        elif part.text:
            yield provider.Thinking(part.text) if part.thought else provider.Text(part.text)

    def _code_execution(self, result: _CodeExecutionResult) -> Iterator[provider.StreamEvent]:
        """Yield the code that this is the result of, if there is any."""
        code, self._code = self._code, None
        if code is not None:
            yield provider.CodeExecution(
                code=code.code or "",
                output=result.output or "",
                language=(code.language or "").lower(),
                outcome=result.outcome or "",
            )

    def _add_grounding(self, candidate: _Candidate) -> None:
        """Collect search results and pages: they come in pieces, and repeatedly."""
        if searched := candidate.grounding_metadata:
            self._queries |= dict.fromkeys(searched.web_search_queries or ())
            self._size += sum(map(len, searched.web_search_queries or ()))
            for chunk in searched.grounding_chunks or ():
                if chunk.web is not None and chunk.web.uri:
                    self._search_results[chunk.web.uri] = provider.Source(chunk.web.title or "", chunk.web.uri)
                    self._size += len(chunk.web.uri) + len(chunk.web.title or "")
        context = candidate.url_context_metadata
        for read in (context and context.url_metadata) or ():
            if read.retrieved_url:
                status = read.url_retrieval_status or ""
                status = "" if status == _PAGE_READ else status
                self._pages[read.retrieved_url] = provider.Source("", read.retrieved_url, status)
                self._size += len(read.retrieved_url) + len(status)


def _usage(metadata: _UsageMetadata) -> messages.Usage:
    return messages.Usage(
        input_tokens=(metadata.prompt_token_count or 0) + (metadata.tool_use_prompt_token_count or 0),
        output_tokens=metadata.candidates_token_count or 0,
        thinking_tokens=metadata.thoughts_token_count or 0,
        total_tokens=metadata.total_token_count or 0,
    )
