"""Callbacks of the program: start, page, settings, models, pasted parameters; with a toy extension in a real folder."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from modules.api.app import build_api
from modules.api.program.extensions import add_extension_routes
from modules.errors import SettingsError
from modules.scripts.axes import AXES
from modules.scripts.program import Program
from modules.services import Services
from modules.settings.definitions import SETTINGS, visible_sections
from modules.settings.setting import Setting
from modules.system.registry import Registry
from modules.ui.form.form import form_values, pasted_fields
from tests.extensions import built_in
from tests.fakes import fake_services, mounted_page
from tests.scripts.toys import extension

SOURCE = """
import gradio as gr
import modules.scripts as scripts
from modules import script_callbacks

SEEN = []

def tabs():
    with gr.Blocks(analytics_enabled=False) as block:
        gr.Markdown("Words of the toy", elem_id="toy_words")
    return [(block, "Toy tab", "toy")]

def started(page, app):
    SEEN.append(("started", type(page).__name__))
    app.add_api_route("/toy/answer", lambda: {"answer": 42})
    app.add_api_route("/sdapi/v1/txt2img", lambda: {"answer": "stolen"}, methods=["POST"])

def settings(group):
    group.flag("toy_on", "Toy is on", False)
    group.choice("toy_kind", "Kind of toy", "bear", ("bear", "train"), hint="Which one.")

def pasted(text, fields):
    SEEN.append(("pasted", fields["Seed"]))
    fields["Seed"] = "99"

script_callbacks.on_before_ui(lambda: SEEN.append("before_ui"))
script_callbacks.on_ui_tabs(tabs)
script_callbacks.on_ui_tabs(lambda: [1], name="broken")
script_callbacks.on_app_started(started)
script_callbacks.on_ui_settings(settings)
script_callbacks.on_infotext_pasted(pasted)
script_callbacks.on_model_loaded(lambda model: SEEN.append(("loaded", model.info.name)))
script_callbacks.on_script_unloaded(lambda: SEEN.append("unloaded"))
"""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    folder = tmp_path_factory.mktemp("data")
    scripts = folder / "extensions" / "toybox" / "scripts"
    scripts.mkdir(parents=True)
    (scripts / "script.py").write_text(SOURCE)
    (folder / "config.json").write_text(json.dumps({"toy_kind": "train", "of_another": 1}))
    built_in()  # its settings stay
    entries, lookup = dict(SETTINGS._entries), dict(SETTINGS._lookup)
    services = fake_services(folder, api_auth="ann:secret")
    yield services
    services.dispatcher.close()
    SETTINGS._entries, SETTINGS._lookup = entries, lookup


def seen() -> list[Any]:
    found: list[Any] = sys.modules["featherweight_scripts.toybox.script"].__dict__["SEEN"]
    return found


@pytest.fixture(scope="module")
def app(services: Services) -> FastAPI:
    return mounted_page(services)


def test_settings_of_extensions_are_stored_shown_and_checked(services: Services) -> None:
    assert services.settings.current["toy_kind"] == "train"  # it stood in the file before anybody knew it
    assert services.settings.current.foreign == {"of_another": 1}
    services.settings.update({"toy_on": True})
    assert json.loads(services.paths.config_file.read_text())["toy_on"] is True
    shown = {section.title: [setting.key for setting in rows] for section, rows in visible_sections().items()}
    assert shown["toybox"] == ["toy_on", "toy_kind"]


def test_tabs_and_routes_are_there_guarded_and_replace_nothing(services: Services, app: FastAPI) -> None:
    assert seen()[0] == "before_ui" and ("started", "GuardedBlocks") in seen()
    client = TestClient(app, raise_server_exceptions=False)
    assert client.get("/toy/answer").status_code == 401
    assert client.get("/toy/answer", auth=("ann", "secret")).json() == {"answer": 42}
    refused = client.post("/sdapi/v1/txt2img", json={"width": 7}, auth=("ann", "secret"))
    assert refused.status_code == 422
    page = client.get("/").text
    assert "Toy tab" in page and "toy_words" in page
    assert "Settings" in page  # the tab behind the broken one


def test_without_a_page_routes_are_there_too(tmp_path: Path) -> None:
    source = "from modules import script_callbacks\nscript_callbacks.on_app_started("
    library = extension(tmp_path, source + "lambda page, app: app.add_api_route('/toy', lambda: page is None))")
    services = fake_services(tmp_path / "data")
    app = build_api(services)
    add_extension_routes(app, library.callbacks, None)
    assert TestClient(app).get("/toy").json() is True
    services.dispatcher.close()


def test_pasted_parameters_pass_by(services: Services) -> None:
    form = form_values(pasted_fields("a cat\nSteps: 5, Sampler: Euler, Seed: 7", services), services)
    assert ("pasted", "7") in seen()
    assert form["seed"] == 99


def test_a_loaded_model_is_told(services: Services) -> None:
    services.engine.model(None)
    assert ("loaded", "tiny-sd1.safetensors") in seen()
    before = seen().count(("loaded", "tiny-sd1.safetensors"))
    services.engine.model(None)
    assert seen().count(("loaded", "tiny-sd1.safetensors")) == before
    services.engine.unload()


def test_scripts_can_ask_for_names(services: Services) -> None:
    assert isinstance(services.scripts.program, Program)
    script = services.scripts.find("x/y/z plot")
    assert script.program.checkpoints() == [info.title for info in services.catalogue.entries]
    assert "Latent" in script.program.upscalers()
    assert script.program.vaes()[:2] == ["Automatic", "None"]


def test_settings_can_stand_in_a_section_of_the_program(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from modules.scripts.settings import add_settings

    lines = (
        "def add(settings):",
        "    ours = settings.section('extra_networks')",
        "    ours.many('toy_many', 'Many', ('a',), ('a', 'b'))",
        "    ours.kept({'toy_kept': 3})",
        "    settings.section('nowhere')",
        "script_callbacks.on_ui_settings(add)",
    )
    library = extension(tmp_path, "from modules import script_callbacks\n" + "\n".join(lines))
    registry: Registry[Setting] = Registry("setting")
    registry.add("sd_hypernetwork", SETTINGS.get("sd_hypernetwork"))
    for _ in range(2):  # a second library of one process
        with caplog.at_level("ERROR"):
            add_settings(library.callbacks, registry)
    assert list(registry) == ["sd_hypernetwork", "toy_many", "toy_kept"]
    assert registry.get("toy_many").section.id == "extra_networks" and registry.get("toy_many").default == ("a",)
    assert registry.get("toy_kept").hidden
    assert "Unknown section of settings 'nowhere'" in caplog.text


def test_frozen_settings_are_those_of_extensions_too(tmp_path: Path) -> None:
    services = fake_services(tmp_path, start=False, freeze_settings=True)
    with pytest.raises(SettingsError, match="sd_lora is locked"):
        services.settings.update({"sd_lora": "x"})
    services.dispatcher.close()


def test_an_axis_has_one_owner(tmp_path: Path) -> None:
    source = "from modules.scripts.axes import Axis, add_axis\nadd_axis(Axis({!r}, float, print, cost={}))"
    names = dict(AXES._entries), dict(AXES._lookup)
    try:
        for cost in (0.1, 0.2):
            assert not extension(tmp_path / str(cost), source.format("Toy axis", cost), "toy").faults
            assert AXES.get("toy axis").cost == cost
        for owner, label in (("toy/script.py", "Toy axis"), ("the program", "Steps")):
            (fault,) = extension(tmp_path / label, source.format(label, 0), "other").faults
            assert f"The axis {label!r} is taken by {owner}" in fault
    finally:
        AXES._entries, AXES._lookup = names


def test_a_setting_that_is_taken_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from modules.scripts.settings import add_settings

    source = "from modules import script_callbacks\nscript_callbacks.on_ui_settings("
    library = extension(tmp_path, source + "lambda group: group.flag('samples_save', 'Mine', True))")
    with caplog.at_level("ERROR"):
        add_settings(library.callbacks)
    assert "The settings of toy/script.py" in caplog.text
    registry: Registry[Setting] = Registry("setting")
    add_settings(library.callbacks, registry)
    assert list(registry) == ["samples_save"]
