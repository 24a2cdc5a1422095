"""Parameters that a route does not declare are refused by name, after the decision on who may call."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Header, Query, testclient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from tarsy.serve import openapi, problems, strict


class Filter(BaseModel):
    phase: Annotated[list[str] | None, Query(max_length=3)] = None
    author: str | None = None


async def allowed(authorization: Annotated[str, Header()] = "") -> str:
    if authorization != "me":
        raise problems.Problem(HTTPStatus.UNAUTHORIZED, "who are you?")
    return authorization


class Things:
    """Routes like those of the API."""

    def __init__(self) -> None:
        self.made = 0
        self.app = FastAPI()
        problems.install(self.app)
        router = strict.router(prefix="/things", tag="things")

        @router.get("")
        async def things(
            caller: str = Depends(allowed),
            limit: Annotated[int, Query(ge=1, le=100)] = 25,
            name: Annotated[tuple[str, ...], Query()] = (),
            which: Annotated[Filter, Query()] = Filter(),  # noqa: B008 - how FastAPI is told
        ) -> dict[str, Any]:
            return {"limit": limit, "name": name, "which": which.model_dump()}

        @router.post("")
        async def make(caller: str = Depends(allowed)) -> dict[str, int]:
            self.made += 1
            return {"made": self.made}

        @router.put("", openapi_extra=openapi.body({"type": "object"}))
        async def put(caller: str = Depends(allowed)) -> dict[str, int]:
            return {"made": self.made}

        self.app.include_router(router)


@pytest.fixture(scope="module")
def client() -> Iterator[testclient.TestClient]:
    with testclient.TestClient(Things().app, headers={"Authorization": "me"}) as session:
        yield session


def faults(client: testclient.TestClient, query: str) -> dict[str, str]:
    answer = client.get(f"/things?{query}")
    assert answer.status_code == 422, answer.text
    return {fault["place"]: fault["message"] for fault in answer.json()["errors"]}


def test_declared_parameters_are_taken(client: testclient.TestClient) -> None:
    answer = client.get("/things?limit=3&name=a&name=b&phase=x&phase=y&author=me")
    which = {"phase": ["x", "y"], "author": "me"}
    assert answer.json() == {"limit": 3, "name": ["a", "b"], "which": which}
    assert client.get("/things?").json()["limit"] == 25


def test_an_unknown_parameter_is_named_with_those_there_are(client: testclient.TestClient) -> None:
    there_is = "unknown parameter; the parameters are author, limit, name, phase"
    assert faults(client, "limt=3&limit=3&Limit=3") == {"query.limt": there_is, "query.Limit": there_is}


def test_repeated_non_list_parameter_is_refused(client: testclient.TestClient) -> None:
    once = "it appears 2 times; give it once"
    assert faults(client, "limit=1&limit=1&author=a&name=a&author=b") == {"query.limit": once, "query.author": once}


@given(st.text(min_size=1))
def test_unknown_parameter_is_refused_with_short_answer(client: testclient.TestClient, name: str) -> None:
    declared = {"limit", "name", "phase", "author"}
    answer = client.get("/things", params={name: ""}) if name.encode(errors="replace").decode() == name else None
    if answer is not None and name not in declared:
        assert answer.status_code == 422
        assert len(answer.text) < 10_000


def test_unauthenticated_caller_gets_only_401_and_no_validation_errors(client: testclient.TestClient) -> None:
    for headers in ({"Authorization": ""}, {"Authorization": "you"}):
        answer = client.get("/things?limit=x&nonsense=1&limit=2", headers=headers)
        assert (answer.status_code, answer.json()["detail"]) == (401, "who are you?")


@pytest.mark.parametrize("body", [b"", b"{}", b" {} \n"])
def test_empty_body_sent_to_path_without_body_is_ignored(client: testclient.TestClient, body: bytes) -> None:
    assert client.post("/things", content=body).status_code == 200


@pytest.mark.parametrize("body", [b'{"a": 1}', b"[]", b"0", b"{}" + b" " * 100_000, iter([b"{}"])])
def test_body_sent_to_path_without_body_is_refused(client: testclient.TestClient, body: Any) -> None:
    answer = client.post("/things", content=body)
    assert (answer.status_code, answer.json()["detail"]) == (422, "body: this path takes no body; send none")
    assert client.request("GET", "/things", content=b"x").status_code == 422


def test_a_body_that_is_described_is_left_to_its_route(client: testclient.TestClient) -> None:
    assert client.put("/things", content=b'{"a": 1}').status_code == 200


def test_a_path_is_refused_with_all_methods_that_serve_it(client: testclient.TestClient) -> None:
    answer = client.delete("/things")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, POST, PUT")
    assert answer.json() == {
        "type": "about:blank",
        "title": "Method Not Allowed",
        "status": 405,
        "detail": "DELETE /things: Method Not Allowed",
    }
