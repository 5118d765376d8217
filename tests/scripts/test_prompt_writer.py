"""The built-in extension that writes prompts: its route, and what images say of it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from lib_prompt_writer import work
from modules.api.app import build_api
from modules.assembly import ROOT
from modules.errors import Interrupted
from modules.images.infotext import format_infotext, parse_infotext
from modules.jobs.tasks import Task
from modules.processing.engine.writing import Written
from modules.prompting.writing import WriteOptions
from modules.scripts.hooks import ScriptRunner
from modules.scripts.job import Job
from modules.scripts.library import ScriptLibrary
from modules.services import Services
from modules.settings.values import Settings
from tests.extensions import built_in
from tests.fakes import fake_services
from tests.scripts.toys import small_request

WORDS = "a fox"
OTHERS = [folder.name for folder in (ROOT / "extensions-builtin").iterdir() if folder.name != "prompt-writer"]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = fake_services(tmp_path_factory.mktemp("data"))
    yield services
    services.dispatcher.close()


@pytest.fixture(scope="module")
def client(services: Services) -> TestClient:
    return TestClient(build_api(services), raise_server_exceptions=False)


def written(engine: Any, prompt: str, settings: Settings, options: WriteOptions, on_token: Any) -> Written:
    on_token(1, options.max_tokens)
    return Written(f"{prompt} in the snow, seed {options.seed}", "qwen.safetensors", options.max_tokens > 10)


def test_a_prompt_is_written_and_says_from_what_and_by_what(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "write_prompt", written)
    reply = client.post("/featherweight/v1/write", json={"prompt": WORDS, "seed": 5}).json()
    assert reply["text"] == "a fox in the snow, seed 5" and reply["written_from"] == WORDS and reply["is_whole"]
    assert reply["by"] == "qwen.safetensors, seed 5, temperature 0.7, 300 tokens"
    assert json.loads(reply["record"]) == {"text": reply["text"], "from": WORDS, "by": reply["by"]}
    short = client.post("/featherweight/v1/write", json={"prompt": WORDS, "max_tokens": 10}).json()
    assert not short["is_whole"] and 0 <= short["seed"] < 2**32


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"prompt": " "}, 422, "There are no words to write a prompt from"),
        ({"prompt": WORDS, "temperature": 9}, 422, "temperature is 9.0; it must be 0.0 to 5.0"),
        ({"prompt": WORDS, "max_tokens": 10**6}, 422, "max_tokens is 1000000; it must be 1 to 1024"),
        ({"prompt": WORDS}, 422, "has no text encoder that writes. Choose a checkpoint of"),
        ({}, 422, "prompt"),
    ],
)
def test_what_cannot_be_written_is_answered(client: TestClient, body: dict[str, Any], status: int, said: str) -> None:
    reply = client.post("/featherweight/v1/write", json=body)
    assert reply.status_code == status and said in reply.json()["errors"], reply.text


def test_interrupting_stops_it(services: Services) -> None:
    spec = work.spec(services, WORDS, WriteOptions())
    task = Task("t", spec.type, spec.title, spec.request, spec)
    task.interrupt()
    with pytest.raises(Interrupted):
        spec.work(task)
    again = work.write_starters(services)[work.TYPE](dict(spec.request))
    assert again.request == spec.request


@pytest.mark.parametrize(
    ("record", "prompt", "is_said"),
    [
        ({"text": "a fox in snow", "from": WORDS, "by": "m, seed 1"}, "a fox in snow <lora:x:1>", True),
        ({"text": "a fox in snow", "from": WORDS, "by": "m, seed 1"}, "a dog", False),
        ({}, "a fox in snow", False),
        ("no JSON", "a fox in snow", False),
        (["a list"], "a fox in snow", False),
    ],
)
def test_images_say_what_their_prompt_was_written_from(record: Any, prompt: str, is_said: bool) -> None:
    built_in()
    library = ScriptLibrary.load([ROOT / "extensions-builtin"], OTHERS)
    assert library.faults == []
    text = record if isinstance(record, str) else json.dumps(record)
    request = small_request(prompt=prompt, alwayson_args={"Write": (text,)})
    p = Job(request, lambda p: pytest.fail("nothing is made here"))
    ScriptRunner(library.alwayson, library.callbacks, request).call("process", p)
    fields = {key: value for key, value in p.extra_generation_params.items() if key.startswith("Written")}
    assert fields == ({"Written from": WORDS, "Written by": "m, seed 1"} if is_said else {})
    if is_said:
        parsed = parse_infotext(format_infotext(prompt, "", {"Steps": 1, **fields}))
        paste = vars(__import__("sys").modules[type(library.alwayson[0]).__module__])["pasted"]
        assert json.loads(paste(parsed)) == {"text": prompt, "from": WORDS, "by": "m, seed 1"}
