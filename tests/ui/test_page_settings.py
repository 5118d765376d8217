"""Every setting of the page has its effect: in what the page's script is told, or in what a form gets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from modules.api.app import build_api
from modules.jobs.in_process import InProcessExecutor
from modules.prompting.styles import Style, StyleBook
from modules.sampling.catalog import SAMPLERS
from modules.services import Services
from modules.settings.definitions import SETTINGS
from modules.settings.values import Settings
from modules.ui.form import pasted_form, sent_form
from modules.ui.page_settings import PAGE_SETTINGS, page_settings
from modules.ui.routes import page_routes
from modules.ui.txt2img_tab import shown_samplers
from tests.fakes import fake_services

ASSETS = Path(__file__).parents[2] / "modules" / "ui" / "assets"
INFOTEXT = (
    "a cat, oil painting\nNegative prompt: blurry\n"
    "Steps: 5, Sampler: Euler, CFG scale: 7, Seed: 9, Size: 64x128, Variation seed: 4, Variation seed strength: 0.5"
)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    services = fake_services(tmp_path, start=False)
    StyleBook.read(services.paths.styles_files).with_style(Style("oil", "oil painting", "blurry")).save()
    yield services
    services.queue.close()


@pytest.mark.parametrize("key", PAGE_SETTINGS)
def test_the_script_reads_every_setting_of_the_page(key: str) -> None:
    assert any(key in file.read_text(encoding="utf-8") for file in ASSETS.glob("*.js"))
    assert not SETTINGS.get(key).hidden


def test_a_change_reaches_the_script_without_a_reload(services: Services) -> None:
    app = build_api(services)
    app.include_router(page_routes(services))
    with TestClient(app) as client:
        assert client.get("/internal/engine").json()["settings"] == page_settings(Settings())
        services.settings.update({"live_preview_refresh_period": 250})
        assert client.get("/internal/engine").json()["settings"]["live_preview_refresh_period"] == 250


@pytest.mark.parametrize(
    ("key", "left_out"),
    [("send_seed", {"seed", "subseed", "subseed_strength"}), ("send_size", {"width", "height"})],
)
def test_what_is_not_sent_along_stays_as_it_is(services: Services, key: str, left_out: set[str]) -> None:
    everything = set(sent_form(INFOTEXT, services))
    assert left_out <= everything
    services.settings.update({key: False})
    assert set(sent_form(INFOTEXT, services)) == everything - left_out
    assert set(pasted_form(INFOTEXT, services)) == everything


@pytest.mark.parametrize(
    ("mode", "prompt", "styles"),
    [
        ("Ignore", "a cat, oil painting", None),
        ("Apply", "a cat", ["oil"]),
        ("Discard", "a cat", None),
        ("Apply if any", "a cat", ["oil"]),
    ],
)
def test_styles_are_found_in_pasted_prompts(services: Services, mode: str, prompt: str, styles: Any) -> None:
    services.settings.update({"infotext_styles": mode})
    values = pasted_form(INFOTEXT, services)
    assert values["prompt"] == prompt
    assert values["negative_prompt"] == ("blurry" if mode == "Ignore" else "")
    assert values.get("styles") == styles


@pytest.mark.parametrize(("mode", "styles"), [("Apply", []), ("Apply if any", None)])
def test_without_a_style_in_the_prompt(services: Services, mode: str, styles: Any) -> None:
    services.settings.update({"infotext_styles": mode})
    assert pasted_form(INFOTEXT.replace("oil", "ink"), services).get("styles") == styles


def test_hidden_samplers_are_not_offered(services: Services) -> None:
    assert shown_samplers(services) == list(SAMPLERS)
    services.settings.update({"hide_samplers": ["Euler a"]})
    assert shown_samplers(services) == [name for name in SAMPLERS if name != "Euler a"]


def test_infotexts_are_printed_where_asked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from modules.jobs.job import Job
    from modules.processing.output import Output
    from tests.scripts.test_scripts import request

    services = fake_services(tmp_path, start=False)
    executor = InProcessExecutor(services.engine, Output(tmp_path))
    for wanted in (False, True):
        settings = Settings().changed(samples_log_stdout=wanted, samples_save=False, grid_save=False)
        executor.run(Job("task", request(prompt="a loud cat", settings=settings, width=64, height=64, steps=1)))
        assert ("a loud cat" in capsys.readouterr().out) is wanted
    executor.close()
    services.queue.close()
