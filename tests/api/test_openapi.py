"""The OpenAPI description: every route has a summary, examples and errors; what is answered has the shapes shown."""

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from modules.adapters.applying import Retention
from modules.api.schema.reply_models import RetentionItem
from tests.fakes import fake_services, mounted_page

Route = tuple[str, str, dict[str, Any]]
STOPS = re.compile(r"/server-(stop|kill|restart)$")
OPEN = {"settings", "metadata", "loaded", "skipped", "options", "parameters", "items", "records", "presets"}
"""Objects whose keys depend on what there is."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    services = fake_services(tmp_path_factory.mktemp("data"), api_server_stop=True)

    yield mounted_page(services)
    services.dispatcher.close()


@pytest.fixture(scope="module")
def client(app: FastAPI) -> TestClient:
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def description(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()
    return found


@pytest.fixture(scope="module")
def routes(description: dict[str, Any]) -> list[Route]:
    return [(method, path, op) for path, ops in description["paths"].items() for method, op in ops.items()]


@pytest.fixture(scope="module", autouse=True)
def lists(client: TestClient, routes: list[Route]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """By path the replies to questions that need nothing, and their operations: before any test has made a job."""
    return {
        path: (client.get(path), operation)
        for method, path, operation in routes
        if method == "get" and "{" not in path and not any(p.get("required") for p in operation.get("parameters", []))
    }


def example_of(operation: dict[str, Any]) -> Any:
    content = operation["responses"]["200"]["content"]
    return next(iter(content.values()))["example"]


def test_every_route_says_what_it_does_and_shows_a_reply(routes: list[Route]) -> None:
    bare = [
        f"{method} {path}"
        for method, path, operation in routes
        if not operation.get("description")
        or operation["summary"].endswith(".")
        or not any("example" in kind for kind in operation["responses"]["200"].get("content", {}).values())
    ]
    assert bare == [], "give these routes a docstring and modules.api.schema.documentation.documented(an example)"
    assert len(routes) > 40


def test_every_route_shows_its_errors_with_a_sentence(routes: list[Route]) -> None:
    for method, path, operation in routes:
        replies = operation["responses"]
        errors = {int(status): reply for status, reply in replies.items() if int(status) >= 400}
        assert {401, 500} <= set(errors), (method, path)
        takes_input = "requestBody" in operation or operation.get("parameters")
        assert not takes_input or 422 in errors, (method, path)
        for reply in errors.values():
            content = reply["content"]["application/json"]
            assert content["example"]["errors"].endswith((".", "?")), (method, path)
            assert content["schema"] == {"$ref": "#/components/schemas/ErrorReply"}


def test_every_body_has_an_example(routes: list[Route]) -> None:
    bodies = {f"{m} {p}": op["requestBody"]["content"] for m, p, op in routes if "requestBody" in op}
    assert [name for name, body in bodies.items() if "example" not in next(iter(body.values()))] == []
    assert len(bodies) >= 6


def test_every_tag_is_explained(routes: list[Route], description: dict[str, Any]) -> None:
    known = {tag["name"] for tag in description["tags"]}
    assert {tag for _, _, operation in routes for tag in operation["tags"]} <= known


def test_error_replies_are_as_described(client: TestClient, description: dict[str, Any]) -> None:
    schema = description["components"]["schemas"]["ErrorReply"]
    reply = client.post("/sdapi/v1/txt2img", json={"width": 7})
    assert reply.status_code == 422 and set(reply.json()) == set(schema["required"]) == set(schema["properties"])
    assert "ValidationError" not in description["components"]["schemas"]


def test_lists_are_answered_in_the_shape_of_their_examples(lists: dict[str, tuple[Any, dict[str, Any]]]) -> None:
    for path, (reply, operation) in lists.items():
        assert reply.status_code == 200, path
        if reply.headers["content-type"] == "application/json":
            assert_same_shape(reply.json(), example_of(operation), path)
    assert len(lists) > 20


def test_posts_without_a_body_are_answered_as_their_examples(client: TestClient, routes: list[Route]) -> None:
    for method, path, operation in routes:
        if method == "post" and path.startswith("/sdapi/v1/") and "requestBody" not in operation:
            if STOPS.search(path) or path.endswith("reload-checkpoint"):
                continue
            assert client.post(path).json() == example_of(operation), path


def test_the_example_of_txt2img_works_and_is_answered_as_shown(
    client: TestClient, description: dict[str, Any], tmp_path: Path
) -> None:
    operation = description["paths"]["/sdapi/v1/txt2img"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["example"]
    reply = client.post("/sdapi/v1/txt2img", json={**body, "steps": 1, "force_task_id": "task(shown)"})
    assert reply.status_code == 200
    assert_same_shape(reply.json(), example_of(operation), "txt2img")
    shown = example_of(description["paths"]["/internal/result"]["get"])
    assert_same_shape(client.get("/internal/result?id_task=task(shown)").json(), shown, "result")
    image = {"image": reply.json()["images"][0]}
    shown = example_of(description["paths"]["/sdapi/v1/png-info"]["post"])
    assert_same_shape(client.post("/sdapi/v1/png-info", json=image).json(), shown, "png-info")


def assert_same_shape(answered: Any, shown: Any, place: str) -> None:
    """Same keys all the way down; lists by their first entries; null stands for a value that may be missing."""
    if isinstance(shown, dict) and isinstance(answered, dict):
        last = place.rsplit(".", 1)[-1].rsplit("/", 1)[-1]
        if last not in (*OPEN, "cmd-flags", "cuda", "texts", "module_detail", "control_types"):
            assert answered.keys() == shown.keys(), place
        for key in answered.keys() & shown.keys():
            assert_same_shape(answered[key], shown[key], f"{place}.{key}")
    elif isinstance(shown, list) and isinstance(answered, list):
        if shown and answered:
            assert_same_shape(answered[0], shown[0], f"{place}.0")
    elif answered is not None and shown is not None:
        assert isinstance(answered, int | float) == isinstance(shown, int | float), place
        assert isinstance(answered, str | int | float) == isinstance(shown, str | int | float), place


def test_the_docs_page_shows_every_route_and_loads_nothing(client: TestClient, routes: list[Route]) -> None:
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert client.get("/redoc").text == page.text
    assert page.text.count("<form ") == len(routes)
    assert "<code>/sdapi/v1/txt2img</code>" in page.text
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page.text)
    assert "<link" not in page.text


def test_the_models_of_replies_hold_what_the_program_measures() -> None:
    retention = Retention(0.99, 0.01, (("down", 0.9),), (("ink", 0.99),))
    assert RetentionItem.model_validate(asdict(retention)).model_dump() == asdict(retention) | {
        "worst": [("down", 0.9)],
        "adapters": [("ink", 0.99)],
    }
