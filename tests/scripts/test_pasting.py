"""Infotext fields of third-party scripts: on the page and over the API."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gradio as gr
import pytest
from fastapi.testclient import TestClient

from modules.api.generation.requests import request_from
from modules.api.schema.schemas import Txt2ImgBody
from modules.processing.request.parameters import Tab
from modules.services import Services
from modules.ui.form.form import pasted_fields
from modules.ui.form.scripts_panel import ScriptFields, build_scripts
from tests.fakes import fake_services, mounted_page

SOURCE = """
import gradio as gr
import modules.scripts as scripts

class Toy(scripts.Script):
    def title(self):
        return "Toy"

    def show(self, is_img2img):
        return scripts.AlwaysVisible

    def ui(self, is_img2img):
        strength = gr.Slider(0, 2, value=1.0, label="Strength")
        count = gr.Slider(1, 9, value=1, step=1, label="Count")
        on = gr.Checkbox(False, label="On")
        kind = gr.Dropdown(["bear", "train"], value="bear", type="index", label="Kind")
        words = gr.Textbox("", label="Words")
        tags = gr.Dropdown(["x", "y", "z"], value=["x"], multiselect=True, label="Tags")
        plain = gr.Textbox("as it was", label="Plain")
        self.infotext_fields = [
            (strength, "Toy strength"),
            (count, "Toy count"),
            (on, "Toy on"),
            (kind, "Toy kind"),
            (words, lambda fields: fields["Toy words"].upper() if "Toy words" in fields else None),
            (tags, "Toy tags"),
            (plain, lambda fields: 1 / 0),
        ]
        self.paste_field_names = []
        for _, name in self.infotext_fields:
            self.paste_field_names.append(name)
        return [strength, count, on, kind, words, tags, plain]

class Choosable(scripts.Script):
    def title(self):
        return "Choosable"

    def ui(self, is_img2img):
        field = gr.Textbox("", label="Field")
        self.infotext_fields = [(field, lambda fields: gr.update(value="shown", interactive=False))]
        return [field, gr.Textbox("", label="Other")]
"""
HEAD = "a cat\nSteps: 5, Sampler: Euler, Seed: 7"
TEXT = f'{HEAD}, Toy strength: 0.5, Toy count: 3, Toy on: True, Toy kind: train, Toy words: hi, Toy tags: "y, z"'
FILLED = (0.5, 3, True, "train", "HI", ["y", "z"])


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    folder = tmp_path_factory.mktemp("data")
    scripts = folder / "extensions" / "toys" / "scripts"
    scripts.mkdir(parents=True)
    (scripts / "script.py").write_text(SOURCE)
    services = fake_services(folder)
    yield services
    services.dispatcher.close()


def panel(services: Services) -> ScriptFields:
    with ThreadPoolExecutor(1) as elsewhere:  # an open browser's loop may run in this thread
        return elsewhere.submit(lambda: asyncio.run(_panel(services))).result()


async def _panel(services: Services) -> ScriptFields:
    """A coroutine, because Gradio leaves event loops open where none is running."""
    with gr.Blocks(analytics_enabled=False):
        return build_scripts(services, Tab.TXT2IMG)


def of_toys(fields: ScriptFields, updates: list[Any]) -> list[Any]:
    """The updates of the scripts above; those of the program have ids."""
    pairs = zip(fields.pasted_outputs, updates, strict=True)
    return [one for part, one in pairs if not getattr(part, "elem_id", None) and getattr(part, "label", "") != "Field"]


def values_of(updates: list[Any]) -> list[Any]:
    return [update.get("value") for update in updates]


def test_a_pasted_text_fills_the_fields_of_scripts(services: Services, caplog: pytest.LogCaptureFixture) -> None:
    fields = panel(services)
    outputs = fields.pasted_outputs
    labels = ["" if component.elem_id else getattr(component, "label", "") for component in outputs]
    expected = ["Strength", "Count", "On", "Kind", "Words", "Tags", "Plain", "Field"]
    assert sorted(label for label in labels if label in expected) == sorted(expected)
    found = zip(labels, fields.pasted(pasted_fields(TEXT, services)), strict=True)
    updates = {label: update for label, update in found if label}
    assert values_of([updates[label] for label in expected]) == [*FILLED, None, "shown"]
    assert updates["Field"]["interactive"] is False
    assert "The script Toy cannot paste" in caplog.text


def test_fields_that_a_text_does_not_have_stay(services: Services) -> None:
    fields = panel(services)
    updates = zip(fields.pasted_outputs, fields.pasted(pasted_fields(HEAD, services)), strict=True)
    own = [(component, update) for component, update in updates if not component.elem_id]
    assert [component.label for component, update in own if "value" in update] == ["Field"]


def test_a_name_that_a_list_does_not_have_is_left_out_and_said(services: Services) -> None:
    fields, parsed = panel(services), pasted_fields(f"{HEAD}, Toy kind: plane", services)
    assert values_of(of_toys(fields, fields.pasted(parsed)))[3] is None
    assert "Toy: Kind 'plane' is not here: what was chosen before is used." in fields.read(parsed)[1]


def test_junk_in_a_field_leaves_it_and_fills_the_others(services: Services) -> None:
    text = f"{HEAD}, Toy strength: lots, Toy count: 4"
    fields = panel(services)
    assert values_of(of_toys(fields, fields.pasted(pasted_fields(text, services))))[:2] == [None, 4]


def test_another_page_or_list_of_arguments_leaves_the_first_page_right(services: Services) -> None:
    first = panel(services)
    panel(services)
    request_from(Txt2ImgBody(prompt="a", infotext=TEXT), services)
    updates = of_toys(first, first.pasted(pasted_fields(TEXT, services)))
    assert values_of(updates)[: len(FILLED)] == list(FILLED)


def test_a_plot_pastes_its_axes(services: Services) -> None:
    fields = panel(services)
    text = f'{HEAD}, Script: X/Y/Z plot, X Type: Steps, X Values: "1-3", Z Type: Sampler, Z Values: "Euler, gone"'
    outputs = zip(fields.pasted_outputs, fields.pasted(pasted_fields(text, services)), strict=True)
    pasted = {component.elem_id: update for component, update in outputs}
    shown = {
        f"{axis}{part}": pasted[f"script_xyz_plot_{axis}_{part}"].get("value")
        for axis in "xyz"
        for part in ("type", "values")
    }
    assert shown == {
        "xtype": "Steps",
        "xvalues": "1-3",
        "ytype": "Nothing",
        "yvalues": "",
        "ztype": "Sampler",
        "zvalues": "",
    }
    assert pasted["script_xyz_plot_z_values_dropdown"]["value"] == ["Euler"]


def test_the_api_fills_what_the_caller_does_not_name(services: Services) -> None:
    request = request_from(Txt2ImgBody(infotext=TEXT), services)
    assert request.alwayson_args == {"Toy": (0.5, 3, True, 1, "HI", ["y", "z"], "as it was")}
    assert request_from(Txt2ImgBody(infotext=HEAD), services).alwayson_args == {}
    named = Txt2ImgBody(infotext=TEXT, alwayson_scripts={"toy": {"args": [1.5]}})
    assert request_from(named, services).alwayson_args["Toy"][:3] == (1.5, 1, False)


def test_pasting_reaches_them_on_the_page(services: Services) -> None:
    config = TestClient(mounted_page(services)).get("/config").json()
    in_order = reversed(config["components"])  # txt2img's, which come first, win over img2img's
    ids = {c["props"].get("elem_id") or c["props"].get("label"): c["id"] for c in in_order}
    click = next(d for d in config["dependencies"] if [ids["paste"], "click"] in d["targets"])
    assert {ids["Strength"], ids["Field"]} <= set(click["outputs"])
    assert ids["Other"] not in click["outputs"]
