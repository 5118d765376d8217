"""The size of the form follows the model in use, unless the user has chosen another."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient
from playwright import sync_api

from modules.api.app import build_api
from modules.models.files.hashing import HashProgress
from modules.processing.engine.status import EngineState, EngineStatus, ModelFacts
from modules.services import Services
from modules.ui.common.defaults import default_size, wanted_checkpoint
from modules.ui.routes.routes import page_routes
from tests.fakes import fake_services
from tests.ui.browser import needs_browser, served, visit


@pytest.fixture
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = fake_services(tmp_path_factory.mktemp("data"), start=False)
    yield services
    services.dispatcher.close()


def load(services: Services, side_px: int, title: str = "x.safetensors") -> None:
    """Have the engine say that it holds a model of this size."""
    facts = ModelFacts(
        title=title,
        family="SDXL",
        parameters=1,
        stored_bytes=2,
        fp16_bytes=2,
        storage="fp16",
        device="cpu",
        default_size_px=side_px,
    )
    services.engine._status = EngineStatus(EngineState.READY, "", facts)


def test_the_model_in_use_says_its_size_better_than_the_yaml(services: Services) -> None:
    title = wanted_checkpoint(services)
    assert default_size(services, title) == 512
    load(services, 1024)
    assert default_size(services, title) == 512, "another model is in use"
    load(services, 1024, title)
    assert default_size(services, title) == 1024
    assert default_size(services, "unknown") == 512


def test_the_page_is_told_the_size_and_what_is_hashed(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page makes of it is in `js/page.test.mjs`."""
    app = build_api(services)
    app.include_router(page_routes(services))
    with TestClient(app) as client:
        assert client.get("/internal/engine").json()["size"] is None
        load(services, 1024)
        monkeypatch.setattr(type(services.engine), "hashing", HashProgress("x.safetensors", 0.5))
        told = client.get("/internal/engine").json()
    assert (told["size"], told["hashing"]) == (1024, "hash of x.safetensors 50 %")


@needs_browser[0]
@needs_browser[1]
def test_the_page_works_below_a_path_of_a_proxy_that_calls_the_server_by_another_name(
    tmp_path: Path, window: sync_api.Page
) -> None:
    services = fake_services(tmp_path, allow_host=("127.0.0.1",))
    with served(services, "/below", "localhost:1") as address, visit(window, f"{address}/below"):
        assert urlsplit(window.url).path == "/below/"
        window.fill("#txt2img_prompt textarea", "a cat")
        window.click("#txt2img_generate")
        window.wait_for_selector("#txt2img_gallery img")
    services.dispatcher.close()
