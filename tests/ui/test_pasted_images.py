"""Images of other versions and programs, pasted into the form: nothing is lost without a word."""

import json
import time
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.errors import InvalidValueError
from modules.images.infotext import unquote, written_fields
from modules.images.metadata import read_metadata
from modules.images.other_programs import infotext_of_text
from modules.scripts.pasting import PastedFields
from modules.services import Services
from modules.ui.form.filling import known_only
from modules.ui.form.form import FIELDS, form_values, pasted_fields, request_of
from modules.ui.form.pasted_keys import EXTENSIONS, FACTS, left_over
from tests.fakes import fake_services
from tests.ui.pasted_images import IMAGES, Pasted
from tests.ui.test_form import FORM

FILLED = {
    **{"Steps": "steps", "CFG scale": "cfg_scale", "Seed": "seed", "Hires upscale": "hires_scale"},
    **{"Hires steps": "hires_steps", "Variation seed": "subseed", "Variation seed strength": "subseed_strength"},
    **{"Hires prompt": "hires_prompt", "Refiner switch at": "refiner_switch_at"},
    **{"Distilled CFG Scale": "distilled_cfg_scale", "Image CFG scale": "image_cfg_scale"},
    **{"Masked area padding": "mask_padding", "Hires Distilled CFG Scale": "hires_distilled_cfg_scale"},
}
"""Fields whose value must stand in the form as it is written."""
BY_NAME = (
    "Seed resize from",
    "Sampler",
    "Schedule type",
    "Hires sampler",
    "Hires schedule type",
    "Hires upscaler",
    "Refiner",
    "Denoising strength",
    "Size",
    "Inpaint area",
)
AS_IN_THE_SETTINGS = frozenset({"Model hash", "VAE", "Cache FP16 weight for LoRA"})
"""Named as a file above, or the same as in the settings."""
"""Those that each case says, or that the note names: names, and what counts with hires fix only."""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = fake_services(tmp_path_factory.mktemp("data"), start=False)
    yield services
    services.dispatcher.close()


def text_of(image: Pasted) -> str:
    """What dropping the image's file gives, or the text that is pasted, in the usual words."""
    if not image.items:
        return infotext_of_text(image.text) or image.text
    chunks, file = PngInfo(), BytesIO()
    for name, value in image.items.items():
        chunks.add_itxt(name, value) if name.startswith("XML") else chunks.add_text(name, value)
    Image.new("RGB", (64, 32)).save(file, "PNG", pnginfo=chunks)
    return read_metadata(file.getvalue())[0] or ""


def pasted(text: str, services: Services) -> tuple[Mapping[str, Any], Mapping[str, Any], str]:
    """The infotext's fields, the form's values, and what is said about the rest."""
    parsed = pasted_fields(text, services)
    found = known_only(form_values(parsed, services), parsed, services)
    return parsed, found.values, " ".join((*found.left_out, *left_over(parsed, ())))


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)
def test_an_image_is_pasted_and_every_field_accounted_for(services: Services, image: Pasted) -> None:
    text = text_of(image)
    _, form, note = pasted(text, services)
    assert {name: form.get(name) for name in image.form} == dict(image.form)
    for words in image.said:
        assert words in note
    chips = [line.partition(": ")[0] for line in form["overrides"]]
    for key, value in written_fields(text)[2].items():
        if key in FILLED:
            assert str(form[FILLED[key]]) == unquote(value), key
        elif key not in (*BY_NAME, *chips) and key not in FACTS | AS_IN_THE_SETTINGS and not key.startswith("Module"):
            named = [key, *(name for name, pattern in EXTENSIONS if pattern.match(key))]
            assert any(name in note for name in named), key
    request_of({**FORM, **{name: form[name] for name in FIELDS if name in form}}, services)


def test_there_are_enough_of_them() -> None:
    assert len(IMAGES) >= 90
    assert len({image.name for image in IMAGES}) == len(IMAGES)


def test_ten_thousand_fields_make_a_short_note_soon(services: Services) -> None:
    more = ", ".join(f"Odd key {number}: {number}" for number in range(10_000))
    begun = time.perf_counter()
    _, form, note = pasted(f"a cat\nSteps: 5, Sampler: DPM++ 2M Karras, Seed: 1, {more}", services)
    assert time.perf_counter() - begun < 2
    assert (form["sampler"], form["scheduler"]) == ("DPM++ 2M", "Karras")
    assert "Odd key 0" in note and "+9,992" in note and len(note) < 400


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"nodes": [1, null, {"id": 1}], "links": [3, null]}',
        '{"1": {"class_type": "A", "inputs": {"latent_image": ["1", 0], "positive": ["1", 0], "steps": "many"}}}',
        '{"1": {"class_type": "KSampler", "inputs": {"latent_image": 1, "positive": ["2", 0]}}, '
        '"2": {"class_type": "A", "inputs": {"conditioning": ["2", 0]}}}',
        '{"app_version": 1, "positive_prompt": {"a": 1}, "loras": [1, {"model": 3}], "width": {}, "seed": [1]}',
        '{"sui_image_params": {"loras": ["a"], "loraweights": 3}}',
        '{"c": 1, "uc": 2, "steps": {}, "lora": [null]}',
        '{"prompt": [], "base_model": {}, "performance": [], "metadata_scheme": 0}',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"package": "json of another program", "version": 3, "files": ["<img src=x onerror=alert(1)>"]}',
        "<script>alert(1)</script>\nSteps: <b>, Sampler: <img>, Seed: \u202e, Size: 9999999999x0",
    ],
)
def test_what_is_no_parameters_breaks_nothing(services: Services, text: str) -> None:
    parsed = pasted_fields(text, services)
    known_only(form_values(parsed, services), parsed, services)


def test_a_graph_that_runs_in_a_ring_ends(services: Services) -> None:
    ring = {str(n): {"class_type": "A", "inputs": {"conditioning": [str((n + 1) % 50), 0]}} for n in range(50)}
    graph = {
        **ring,
        "x": {
            "class_type": "KSampler",
            "inputs": {"latent_image": ["1", 0], "positive": ["0", 0], "steps": 4, "cfg": 3},
        },
    }
    assert pasted_fields(json.dumps(graph), services)["Steps"] == "4"


def test_what_a_script_reads_is_not_left_over_and_what_it_refuses_is_said() -> None:
    def refuse(fields: Mapping[str, Any]) -> Any:
        raise InvalidValueError(f"the model is {fields['Toy model']}; it takes others.")

    first, second = object(), object()
    fields = PastedFields.of("Toy", [first, second], [(first, "Toy size"), (second, refuse)])
    read = fields.read({"Toy size": "3", "Toy model": "x", "Odd": "1"})
    assert read.keys == {"Toy size", "Toy model"}
    assert read.refused == ("Toy: the model is x; it takes others.",)
    assert left_over(("Toy size", "Toy model", "Odd", "Hires resize-1"), read.keys) == [
        "Left out, because nothing here reads it: Odd."
    ]
