"""Every setting of the page has its effect: in what the page's script is told, or in what a form gets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from modules.api.app import build_api
from modules.api.schema.name_lists import shown_samplers
from modules.jobs.workers.in_process import InProcessExecutor
from modules.prompting.styles import Style, StyleBook
from modules.sampling.catalog import SAMPLERS
from modules.services import Services
from modules.settings.definitions import SETTINGS
from modules.settings.values import Settings
from modules.ui.common.page_settings import PAGE_SETTINGS, page_settings
from modules.ui.form.form import form_values, pasted_fields, sent_values
from modules.ui.routes.routes import page_routes
from modules.ui.tabs.quicksettings import wanted_quicksettings
from modules.ui.tabs.settings_form import choices_of
from tests.fakes import fake_services, settings_kept

ASSETS = Path(__file__).parents[2] / "modules" / "ui" / "assets"
INFOTEXT = (
    "a cat, oil painting\nNegative prompt: blurry\n"
    "Steps: 5, Sampler: Euler, CFG scale: 7, Seed: 9, Size: 64x128, Variation seed: 4, Variation seed strength: 0.5"
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = fake_services(tmp_path_factory.mktemp("data"))
    StyleBook.read(services.paths.styles_files).with_style(Style("oil", "oil painting", "blurry")).save()
    yield services
    services.dispatcher.close()


@pytest.fixture
def services(program: Services) -> Iterator[Services]:
    with settings_kept(program):
        yield program


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
    everything = set(sent_values(pasted_fields(INFOTEXT, services), services))
    assert left_out <= everything
    services.settings.update({key: False})
    assert set(sent_values(pasted_fields(INFOTEXT, services), services)) == everything - left_out
    assert set(form_values(pasted_fields(INFOTEXT, services), services)) == everything


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
    values = form_values(pasted_fields(INFOTEXT, services), services)
    assert values["prompt"] == prompt
    assert values["negative_prompt"] == ("blurry" if mode == "Ignore" else "")
    assert values.get("styles") == styles


@pytest.mark.parametrize(("mode", "styles"), [("Apply", []), ("Apply if any", None)])
def test_without_a_style_in_the_prompt(services: Services, mode: str, styles: Any) -> None:
    services.settings.update({"infotext_styles": mode})
    assert form_values(pasted_fields(INFOTEXT.replace("oil", "ink"), services), services).get("styles") == styles


def test_hidden_samplers_are_not_offered(services: Services) -> None:
    assert shown_samplers(services) == list(SAMPLERS)
    services.settings.update({"hide_samplers": ["Euler a"]})
    assert shown_samplers(services) == [name for name in SAMPLERS if name != "Euler a"]


def test_infotexts_are_printed_where_asked(
    services: Services, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from modules.jobs.job import Job
    from modules.processing.record.output import Output
    from tests.scripts.test_scripts import request

    executor = InProcessExecutor(services.engine, Output(tmp_path))
    for wanted in (False, True):
        settings = Settings().changed(samples_log_stdout=wanted, samples_save=False, grid_save=False)
        executor.run(Job("task", request(prompt="a loud cat", settings=settings, width=64, height=64, steps=1)))
        assert ("a loud cat" in capsys.readouterr().out) is wanted
    executor.close()


def test_tokens_are_counted_as_the_settings_say(services: Services) -> None:
    app = build_api(services)
    app.include_router(page_routes(services))
    with TestClient(app) as client:

        def count(text: str, **more: Any) -> str:
            return str(client.post("/internal/token-count", json={"text": text, **more}).json()["text"])

        assert count("a cat", styles=["oil", "gone"]) == "5/75"  # a cat, oil painting
        assert count("a cat", styles=["oil"], is_negative=True) == "4/75"  # a cat, blurry
        assert count("# a note\na cat") == "2/75"
        assert count("cat " * 80) == "80/150"
        services.settings.update({"include_styles_into_token_counters": False, "enable_prompt_comments": False})
        services.settings.update({"use_old_emphasis_implementation": True})
        assert count("a cat", styles=["oil"]) == "2/75"
        assert count("# a note\na cat") == "5/75"
        assert count("cat " * 80) == "75/75"


def finished_job(services: Services, task: str) -> None:
    from modules.processing.request.request import GenerationRequest

    request = GenerationRequest(prompt="x", width=64, height=64, steps=1, batch_size=2, seed=3)
    assert services.queue.submit(request, task_id=task).wait(120)


def test_the_save_button_saves_one_image_or_all(services: Services) -> None:
    app = build_api(services)
    app.include_router(page_routes(services))
    finished_job(services, "task(a)")
    with TestClient(app) as client:
        chosen = {"id_task": "task(a)", "index": 1}
        assert Path(client.post("/internal/save-image", json=chosen).json()["path"]).name == "00000-4-x.png"
        services.settings.update({"save_selected_only": False})
        path = client.post("/internal/save-image", json=chosen).json()["path"]
    assert [Path(part).name for part in path.split(", ")] == ["00001-3-x.png", "00002-4-x.png"]


@pytest.mark.parametrize(
    ("choice", "folder"), [("Output Root", "txt2img-images"), ("Subdirectory", "today"), (None, "today")]
)
def test_open_folder_opens_what_the_setting_says(services: Services, choice: str | None, folder: str) -> None:
    from modules.ui.routes.gallery_routes import folder_of

    if choice:
        services.settings.update({"open_dir_button_choice": choice})
    saved = services.paths.data_dir / "outputs" / "txt2img-images" / "today" / "00000-3.png"
    assert folder_of(services, saved).name == folder
    assert folder_of(services, None).name == "txt2img-images"


def test_prompts_are_printed_where_asked(
    services: Services, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from modules.jobs.job import Job
    from modules.processing.record.output import Output
    from tests.scripts.test_scripts import request

    executor = InProcessExecutor(services.engine, Output(tmp_path))
    for wanted in (False, True):
        settings = Settings().changed(enable_console_prompts=wanted, samples_save=False, grid_save=False)
        executor.run(Job("task", request(prompt="a loud dog", settings=settings, width=64, height=64, steps=1)))
        assert (capsys.readouterr().out == "a loud dog\n") is wanted
    executor.close()


def test_only_settings_with_an_effect_stand_at_the_top_each_once(
    services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    services.settings.update(
        {
            "quicksettings_list": [
                "sd_model_checkpoint",
                "tiling",
                "nonsense",
                "fp8_storage",
                "tiling",
                "ui_reorder_list",
            ]
        }
    )
    assert [setting.key for setting in wanted_quicksettings(services)] == ["tiling"]
    assert "'nonsense'" in caplog.text and "'ui_reorder_list'" in caplog.text


@pytest.mark.parametrize("key", ["quicksettings_list", "infotext_skip_pasting"])
def test_lists_offer_something_to_choose(services: Services, key: str) -> None:
    assert len(choices_of(SETTINGS.get(key), services)) > 20
