"""The size of the form follows the model in use, unless the user has chosen another."""

from collections.abc import Iterator

import pytest
from playwright import sync_api

from modules.models.files.hashing import HashProgress
from modules.processing.engine.status import EngineState, EngineStatus, ModelFacts
from modules.services import Services
from modules.ui.defaults import default_size, wanted_checkpoint
from tests.fakes import fake_services
from tests.ui.browser import needs_browser

WIDTH, HEIGHT = "#txt2img_width input[type=number]", "#txt2img_height input[type=number]"


@pytest.fixture
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = fake_services(tmp_path_factory.mktemp("data"))
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


@needs_browser[0]
@needs_browser[1]
def test_an_untouched_size_follows_the_model_and_a_chosen_one_stays(
    page: sync_api.Page, fakes: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes.engine, "_status", fakes.engine._status)  # put back at the end
    load(fakes, 512)
    page.wait_for_function("featherweight.tab('txt2img').proposedSize === 512")
    sync_api.expect(page.locator(WIDTH)).to_have_value("512")
    load(fakes, 1024)
    sync_api.expect(page.locator(WIDTH)).to_have_value("1024")
    sync_api.expect(page.locator(HEIGHT)).to_have_value("1024")
    page.fill(HEIGHT, "640")
    page.press(HEIGHT, "Tab")
    load(fakes, 512)
    sync_api.expect(page.locator(WIDTH)).to_have_value("512")
    sync_api.expect(page.locator(HEIGHT)).to_have_value("640")
    monkeypatch.setattr(type(fakes.engine), "hashing", HashProgress("x.safetensors", 0.5))
    sync_api.expect(page.locator("#fw_scales")).to_have_attribute("data-hashing", "hash of x.safetensors 50 %")
