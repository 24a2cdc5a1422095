"""The payload of `POST /api/v1/investigations/{id}/chat`: a question about what was found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tarsy.ingest import payload

CHARACTERS_MAX = 100_000


def _not_blank(question: str) -> str:
    if not question.strip():
        raise ValueError("it is blank: say what you want to know")
    return question


class Question(BaseModel):
    """A question to answer. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: Annotated[
        str,
        Field(min_length=1, max_length=CHARACTERS_MAX, description="It is masked before it is stored or sent."),
        AfterValidator(_not_blank),
    ]


def parse(body: bytes, *, mask: Callable[[str], str]) -> str:
    """The question, masked. A payload.PayloadError says that it is no JSON, a pydantic.ValidationError what is wrong.

    Large bodies take long enough to belong into a thread.
    """
    return mask(Question.model_validate(payload.load(body)).question)


def schema() -> dict[str, Any]:
    """The payload's JSON schema, for the API's description."""
    return Question.model_json_schema()
