"""The payload of `POST /api/v1/investigations/{id}/chat`: a question about an investigation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tarsy.ingest import payload

CHARACTERS_MAX = 100_000


class Question(BaseModel):
    """A question to answer. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: Annotated[
        str,
        Field(min_length=1, max_length=CHARACTERS_MAX, description="It is masked before it is stored or sent."),
        payload.refuse_blank("say what you want to know"),
    ]


def parse(body: bytes, *, mask: Callable[[str], str]) -> str:
    """Return the question, masked. Raise payload.PayloadError if `body` is not JSON, else pydantic.ValidationError.

    Large bodies take so long that they belong in a thread.
    """
    return mask(Question.model_validate(payload.load(body)).question)


def schema() -> dict[str, Any]:
    """Return the payload's JSON schema, for the API's description."""
    return Question.model_json_schema()
