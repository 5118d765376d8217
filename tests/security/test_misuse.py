"""What users of little rights, and several of them at once, may not bring about."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from compat.store.store import read_index
from modules.api.generation import generation
from modules.errors import InvalidValueError
from modules.scripts import library
from modules.scripts.extension import Extension
from modules.scripts.script import Script
from modules.services import Services
from tests.compat.conftest import write
from tests.downloads.file_server import Behavior, safetensors, serving
from tests.fakes import fake_services, whole_api


@pytest.fixture
def extension(services: Services, tmp_path: Path) -> Iterator[Extension]:
    """One with a script on the page, for the length of a test."""
    write(tmp_path, {"mine/javascript/a.js": ""})
    made = Extension("mine", tmp_path / "mine")
    services.scripts.extensions["mine"] = made
    services.scripts.page_scripts.append(tmp_path / "mine" / "javascript" / "a.js")
    yield made
    services.scripts.page_scripts.pop()
    del services.scripts.extensions["mine"]


def test_a_fault_on_the_page_is_said_with_whose_page_it_is(
    clients: dict[str, TestClient], services: Services, extension: Extension
) -> None:
    body = {"extension": "mine", "reason": "x is not\u202e defined\x1b[31m"}
    assert clients["vic"].post("/internal/extension-fault", json=body).status_code == 403
    assert clients["ben"].post("/internal/extension-fault", json=body).status_code == 200
    assert [(fault.where, fault.reason) for fault in extension.faults] == [
        ("javascript, on ben's page", "x is not defined[31m")
    ]
    without = next(one for one in services.scripts.extensions.values() if one.name == "xyz-grid")
    reply = clients["ben"].post("/internal/extension-fault", json={**body, "extension": without.name})
    assert reply.status_code == 422 and "no script on the page" in reply.text and not without.faults


def test_an_embedding_in_a_paused_line_is_not_waited_for(
    clients: dict[str, TestClient], services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "PAUSED_S", 0.2)
    services.queue.pause(True)
    try:
        for name in ("../../../x", "a\0b", "CON", ""):
            reply = clients["ada"].post("/sdapi/v1/create/embedding", json={"name": name})
            assert reply.status_code == 422, reply.text
        reply = clients["ada"].post("/sdapi/v1/create/embedding", json={"name": "mine"})
        assert reply.status_code == 503 and "The queue is paused" in reply.text
    finally:
        services.queue.pause(False)


def test_components_of_scripts_are_built_one_after_the_other(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several callers ask for the scripts' descriptions at once when none was built yet."""
    active, most, lock, build = 0, 0, threading.Lock(), library._build

    async def counted(script: Script) -> list[object]:
        nonlocal active, most
        with lock:
            active += 1
            most = max(most, active)
        await asyncio.sleep(0.02)
        try:
            return await build(script)
        finally:
            with lock:
                active -= 1

    monkeypatch.setattr(library, "_build", counted)
    scripts = services.scripts.scripts[:6]
    for script in scripts:
        monkeypatch.setattr(script, "built", None)
    with ThreadPoolExecutor(6) as threads:
        assert all(isinstance(found, list) for found in threads.map(library.components_of, scripts))
    assert most == 1


def test_an_index_does_not_tell_what_lies_on_the_disk(tmp_path: Path) -> None:
    write(tmp_path, {"there.txt": "{}", "folder.json/x": ""})
    said = set()
    for name in ("there.txt", "missing.txt", "missing.json", "folder.json"):
        with pytest.raises(InvalidValueError) as refused:
            read_index(str(tmp_path / name))
        said.add(str(refused.value).replace(name, "NAME"))
    assert len(said) == 1, said


def test_facts_of_a_model_stay_where_its_preview_is_refused(tmp_path: Path) -> None:
    """The page of a repository on one server names an image on another one of this machine."""
    services = fake_services(tmp_path)
    lora = services.paths.lora_dirs[0] / "dog.safetensors"
    lora.parent.mkdir(parents=True, exist_ok=True)
    lora.write_bytes(safetensors({"lora_unet_a.lora_down.weight": ("F16", [4, 64])}))
    inside = Behavior(b"an image")
    with serving({"/image.png": inside}) as other:
        readme = f"---\ninstance_prompt: photo of sks dog\nwidget:\n- output: {{url: '{other}/image.png'}}\n---\n"
        with serving({"/o/dog/resolve/main/README.md": Behavior(readme.encode())}) as page:
            assert services.downloads is not None
            services.downloads.remember(lora, "source", f"{page}/o/dog/resolve/main/dog.safetensors")
            body = {"key": "Lora/0/dog.safetensors"}
            reply = TestClient(whole_api(services)).post("/featherweight/v1/models/about", json=body)
    assert reply.status_code == 422 and "over http" in reply.json()["errors"] and not inside.requests
    assert "photo of sks dog" in lora.with_suffix(".json").read_text()
    services.dispatcher.close()
