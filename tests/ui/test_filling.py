"""What gets into a form from pasted parameters and from an earlier page, and what does not."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradio as gr
import pytest
from fastapi.testclient import TestClient

from modules.api.app import build_api
from modules.processing.request.request import GenerationRequest
from modules.services import Services
from modules.ui.form.filling import Filling, bounded, known_only, restored, takes
from modules.ui.form.form import NO_REFINER, SAME_CHECKPOINT, form_values, pasted_fields
from modules.ui.form.scales import pending_line, scales_facts
from modules.ui.routes.routes import page_routes
from tests.fakes import fake_services
from tests.ui.test_default_size import load
from tests.ui.test_form import FORM

START = "a cat <lora:balloon:1> and <lora:ballon:0.5>\nSteps: 5, Sampler: Euler, CFG scale: 7, Seed: 9, Size: 64x128"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = fake_services(tmp_path_factory.mktemp("data"), start=False)
    yield services
    services.dispatcher.close()


def pasted(services: Services, extra: str = "") -> Filling:
    parsed = pasted_fields(f"{START}{extra}", services)
    return known_only(form_values(parsed, services), parsed, services)


@pytest.mark.parametrize(
    ("extra", "field", "value", "said"),
    [
        (
            ", Schedule type: karas",
            "scheduler",
            "Automatic",
            "'karas' is not here: Automatic is used. Did you mean 'Karras'?",
        ),
        (", Schedule type: Foo", "scheduler", "Automatic", "Schedule type 'Foo' is not here: Automatic is used."),
        (", Hires upscale: 2, Hires upscaler: Lanczso", "hires_upscaler", "Latent", "Did you mean 'Lanczos'?"),
        (", Hires upscale: 2, Hires upscaler: 4x-UltraSharp", "hires_upscaler", "Latent", "here: Latent is used."),
        (", Hires upscale: 2, Hires sampler: Eular", "hires_sampler", "Use same sampler", "Did you mean 'Euler'?"),
        (", Hires upscale: 2, Hires sampler: DPM++ 2M Karras", "hires_sampler", "DPM++ 2M", "LoRA 'ballon'"),
        (", Hires upscale: 2, Hires sampler: DPM++ 2M Karras", "hires_scheduler", "Karras", "LoRA 'ballon'"),
        (", Refiner: gone [123]", "refiner_checkpoint", NO_REFINER, "Checkpoint 'gone [123]' is not here: no refiner"),
        (", Hires upscale: 2, Hires checkpoint: gone", "hires_checkpoint", SAME_CHECKPOINT, "Checkpoint 'gone'"),
        (", VAE: gone.pt", "overrides", [], "VAE 'gone.pt' is not here: the one of the settings is used"),
        (", Model: gone, Model hash: deadbeef00", "overrides", [], "Checkpoint 'gone' is not here: the selected one"),
        ("", "prompt", "a cat <lora:balloon:1> and <lora:ballon:0.5>", "LoRA 'ballon' is not here: its tag stays"),
        ("", "prompt", "a cat <lora:balloon:1> and <lora:ballon:0.5>", "Did you mean 'balloon'?"),
    ],
)
def test_a_name_that_is_not_here_is_named_with_what_is_used(
    services: Services, extra: str, field: str, value: object, said: str
) -> None:
    found = pasted(services, extra)
    assert found.values.get(field) == value
    assert said in " ".join(found.left_out)


def test_images_that_it_was_made_from_are_named_by_their_hash(services: Services) -> None:
    found = pasted(services, ", Denoising strength: 0.5, Init image sha256: 0123456789ab, Mask sha256: ba9876543210")
    assert "from the init image 0123456789ab" in " ".join(found.left_out) and "from the mask ba9876543210" in " ".join(
        found.left_out
    )
    found = pasted(services, ', Reference images: "0123456789ab, ba9876543210"')
    assert "with the reference image 0123456789ab" in " ".join(
        found.left_out
    ) and "image ba9876543210 (sha256" in " ".join(found.left_out)


def test_what_is_here_stays_and_nothing_is_said(services: Services) -> None:
    text = ", Schedule type: Karras, Hires upscale: 2, Hires upscaler: Lanczos, Clip skip: 2, Model: tiny-sd1"
    found = pasted(services, text)
    assert len(found.left_out) == 1  # the LoRA of the prompt
    assert (found.values["scheduler"], found.values["hires_upscaler"]) == ("Karras", "Lanczos")
    assert found.values["overrides"] == ["Clip skip: 2"]


def test_a_hidden_sampler_cannot_be_pasted(services: Services) -> None:
    services.settings.update({"hide_samplers": ["Euler"]})
    found = pasted(services)
    assert found.values["sampler"] == "DPM++ 2M" and "Sampler 'Euler' is not here: DPM++ 2M is used." in " ".join(
        found.left_out
    )
    services.settings.update({"hide_samplers": []})
    assert pasted(services).values["sampler"] == "Euler"


def test_numbers_beyond_a_slider_are_named() -> None:
    fields: dict[str, Any] = {"width": gr.Slider(64, 2048, label="Width"), "seed": gr.Number(label="Seed")}
    found = bounded({"width": 4096, "seed": 5, "prompt": "x"}, fields)
    assert found.values == {"seed": 5, "prompt": "x"}
    assert found.left_out == ("Width 4096 was left out: the form takes 64 to 2048.",)


def test_an_earlier_pages_values_come_back_as_far_as_fields_take_them() -> None:
    prompt, steps, seed = gr.Textbox(), gr.Slider(1, 150), gr.Number()
    sampler, styles = gr.Dropdown(["Euler"]), gr.Dropdown(["oil"], multiselect=True)
    check, image = gr.Checkbox(), gr.Image()
    fields: dict[str, Any] = {"prompt": prompt, "steps": steps, "seed": seed, "sampler": sampler, "styles": styles}
    kept = {"prompt": "a cat", "steps": 400, "seed": None, "sampler": "gone", "styles": ["oil"], "more": 1}
    text = json.dumps({"fields": kept, "others": [True, {"path": "/etc/passwd"}]})
    assert restored(text, fields, [check, image]) == {prompt: "a cat", seed: None, styles: ["oil"], check: True}
    assert check not in restored(text, fields, [check]), "scripts were added or removed"


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"fields": 3}', '{"fields": {}, "others": 5}'])
def test_kept_text_that_is_damaged_restores_nothing(text: str) -> None:
    field = gr.Textbox()
    assert restored(text, {"prompt": field}, []) == {}


@pytest.mark.parametrize("value", ["5", True, float("inf"), [5], None, {}])
def test_a_slider_takes_numbers_in_its_range_only(value: object) -> None:
    assert not takes(gr.Slider(1, 10), value)


def test_the_memory_line_counts_the_form_as_generate_would(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[GenerationRequest] = []
    plan = services.estimator.plan

    def heard(request: GenerationRequest, free: int | None = None) -> object:
        asked.append(request)
        return plan(request, free)

    monkeypatch.setattr(services.estimator, "plan", heard)
    app = build_api(services)
    app.include_router(page_routes(services))
    form = {**FORM, "hires_enabled": True, "hires_scale": 1.5}
    with TestClient(app) as client:
        reply = client.post("/internal/memory-estimate", json={"form": form})
        assert reply.status_code == 200 and reply.json()["nothing_fits"] == ""
        assert asked[0].hires is not None and asked[0].hires.scale == 1.5
        for wrong in ({}, {**form, "width": "wide"}, {**form, "sampler": "gone"}):
            refused = client.post("/internal/memory-estimate", json={"form": wrong})
            assert refused.status_code in (404, 422) and refused.json()["errors"]


@pytest.mark.parametrize(
    ("storage", "wanted", "is_busy", "said"),
    [
        ("fp16", "Disable", True, ""),
        ("fp16", "Enable", True, "changes to 8 bits after this job"),
        ("fp8 row", "Disable", False, "changes to 16 bits with the next job"),
        ("int8 row", "Enable", False, ""),
        ("fp16", "Enable for SDXL", False, ""),
    ],
)
def test_a_change_of_precision_that_waits_is_named(
    services: Services, storage: str, wanted: str, is_busy: bool, said: str
) -> None:
    load(services, 512)
    model = services.engine.status.model
    assert model is not None
    assert pending_line(replace(model, storage=storage), wanted, is_busy) == said
    assert "x.safetensors" in scales_facts(model)


def test_bundled_adapters_are_found_with_another_data_folder(services: Services) -> None:
    paths = services.paths
    names = {info.name for info in services.engine.adapters.files.catalogue.entries}
    assert {"balloon", "blueprint"} <= names
    assert paths.lora_dirs[0] == paths.models_dir / "Lora" and paths.root / "models" / "Lora" in paths.lora_dirs
