"""The API against what its own description allows and forbids: whatever is sent, nothing is our mistake.

About 150 cases by default, 2,000 in all of Schemathesis' phases with `--thorough`.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from fastapi.testclient import TestClient
from schemathesis import Case, HookContext
from schemathesis.engine import events, from_schema
from schemathesis.schemas import BaseSchema

from modules.ui.routes.routes import page_routes
from tests.fakes import fake_services, whole_api
from tests.thorough import is_thorough

IS_THOROUGH = is_thorough()
LARGEST = {"steps": 2, "n": 1, "width": 64, "height": 64, "batch_size": 2, "n_iter": 2, "hr_scale": 2.0}
"""Larger jobs are refused or take long, and neither is what is looked for here."""
STARTED = "/featherweight/v1/"
"""Below it posts begin work of minutes on the one checkpoint there is; their bodies keep to the wrong names."""

CARDS = "/internal/extra-networks/"
"""Posts below it write next to files, the shipped ones among them; their bodies name none."""

SLOW = ["/sdapi/v1/plan", "/sdapi/v1/reload-checkpoint"]
"""They read the checkpoint: left out where there is little time."""


ENDLESS = ["/featherweight/v1/queue/pause", "/agent-scheduler/v1/queue/pause", "/featherweight/v1/history/import"]
"""After them every job waits, or a whole disk is read."""
NEEDS_MODEL = ["/sdapi/v1/create/embedding"]
"""It needs the text encoders of a model, which this program has none of."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    services = fake_services(tmp_path_factory.mktemp("data"))
    app = whole_api(services)
    app.include_router(page_routes(services))
    yield app
    services.dispatcher.close()


@pytest.fixture
def bounded() -> Iterator[None]:
    """Jobs are kept small, and no task of minutes begins, in whatever phase a case is made."""

    @schemathesis.hook
    def before_call(context: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
        if isinstance(case.body, dict):
            for name, largest in LARGEST.items():
                value = case.body.get(name)
                if isinstance(value, int | float) and not isinstance(value, bool) and value > largest:
                    case.body[name] = largest
            if case.path.startswith(STARTED):  # without one, the checkpoint that is there would do
                case.body["checkpoint"] = f"no {case.body.get('checkpoint', 'checkpoint')}"
            if case.path.startswith(CARDS) and isinstance(case.body.get("key"), str):
                case.body["key"] = f"no {case.body['key']}"

    yield
    schemathesis.hooks.unregister(before_call)


def test_no_request_is_answered_with_a_mistake_of_ours(app: FastAPI, bounded: None) -> None:
    config = schemathesis.Config.from_dict(
        {
            "seed": 1,
            "request-timeout": 120,
            "generation": {"max-examples": 50 if IS_THOROUGH else 3},
            "phases": {"coverage": {"enabled": IS_THOROUGH}, "stateful": {"enabled": IS_THOROUGH}},
        }
    )
    schema: BaseSchema = schemathesis.openapi.from_asgi("/openapi.json", app, config=config)
    schema = schema.exclude(path=[*ENDLESS, *NEEDS_MODEL])
    if not IS_THOROUGH:
        schema = schema.exclude(path=SLOW)
    statuses: Counter[int] = Counter()
    mistakes: list[str] = []
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            mistakes.append(str(event))
        if isinstance(event, events.ScenarioFinished):
            for key, interaction in event.recorder.interactions.items():
                reply = interaction.response
                if reply is None:
                    mistakes.append(f"no reply: {key}")
                    continue
                statuses[reply.status_code] += 1
                if reply.status_code >= 500:
                    mistakes.append(f"{interaction.request.method} {interaction.request.uri}: {reply.text[:300]}")
    assert mistakes == []
    assert statuses.total() >= (2000 if IS_THOROUGH else 80), statuses
    assert statuses[200] > statuses.total() / 10, statuses


HOSTILE: Mapping[str, str] = {
    "NaN": "NaN",
    "deep": "[" * 100_000 + "]" * 100_000,
    "10^400": "1" + "0" * 400,
    "lists": '[[], "x", null]',
    "objects": '{"a": []}',
    "number": "9223372036854775808",
    "text": '"\\u0001x"',
    "Infinity": "-Infinity",
    "1e400": "1e400",
    "10^5000": "1" + "0" * 5000,
    "deep objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "negative": "-1e300",
    "fraction": "0.5",
    "true": "true",
    "null": "null",
    "empty": '""',
    "list of numbers": "[1e308, -1]",
    "large text": f'"{"x" * 300_000}"',
}
"""JSON that no client of good will sends, as text: most libraries do not write it. The first ones by default."""
BY_DEFAULT = 7
EACH = ("/controlnet/", "/sdapi/v1/png-info", "/agent-scheduler/v1/import", "/sdapi/v1/interrogate", "/internal/styles")
"""Below these, by default too, one value of a body at a time is hostile, and the others are as in the examples."""
BEGIN_LONG_WORK = ("/featherweight/v1/queue/pause", "/agent-scheduler/v1/queue/pause", "/sdapi/v1/server-stop")


def example_of(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> Any:
    """What a description gives as an example of a value; None where it gives none."""
    if "$ref" in schema:
        return example_of(parts[schema["$ref"].rpartition("/")[2]], parts)
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    if "default" in schema or "const" in schema:
        return schema.get("default", schema.get("const"))
    if "properties" in schema:
        return {name: example_of(each, parts) for name, each in schema["properties"].items()}
    return next((example_of(each, parts) for each in schema.get("anyOf", ()) if each.get("type") != "null"), None)


def hostile_bodies(schema: Mapping[str, Any], parts: Mapping[str, Any], of_each: bool) -> Iterator[tuple[str, str]]:
    """Bodies by what is wrong with them: all of one, each of its values, or with `of_each` one after the other."""
    if "$ref" in schema:
        schema = parts[schema["$ref"].rpartition("/")[2]]
    names = list(schema.get("properties", {})) or ["a"]
    values = list(HOSTILE.items())[: None if IS_THOROUGH else BY_DEFAULT]
    example = example_of(schema, parts)
    usual = {name: json.dumps(example.get(name) if isinstance(example, dict) else None) for name in names}
    for what, text in values:
        yield f"body {what}", text
        yield f"all {what}", "{" + ", ".join(f"{json.dumps(name)}: {text}" for name in names) + "}"
        for name in names if of_each else ():
            pairs = {
                **usual,
                name: text,
                **{key: str(most) for key, most in LARGEST.items() if key in usual and key != name},
            }
            yield f"{name} {what}", "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in pairs.items()) + "}"


def test_no_hostile_body_is_a_mistake_of_ours(app: FastAPI) -> None:
    description: dict[str, Any] = app.openapi()
    parts = description.get("components", {}).get("schemas", {})
    statuses: Counter[int] = Counter()
    mistakes: list[str] = []
    with TestClient(app, raise_server_exceptions=False) as client:
        for path, methods in description["paths"].items():
            for method, operation in methods.items():
                content = operation.get("requestBody", {}).get("content", {}).get("application/json")
                if content is None or path in (*ENDLESS, *BEGIN_LONG_WORK):
                    continue
                is_quick = not path.startswith((STARTED, CARDS)) and path not in SLOW
                of_each = path.startswith(EACH) or (IS_THOROUGH and is_quick)
                for what, body in hostile_bodies(content["schema"], parts, of_each):
                    for kind in ("application/json", None) if what.startswith("body") else ("application/json",):
                        headers = {"Content-Type": kind} if kind else {}
                        reply = client.request(method, path, content=body.encode(), headers=headers)
                        statuses[reply.status_code] += 1
                        if reply.status_code >= 500:
                            mistakes.append(f"{method} {path} ({what}, {kind}): {reply.status_code} {reply.text[:200]}")
    assert mistakes == []
    assert statuses[422] > 500, statuses
