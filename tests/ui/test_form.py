from collections.abc import Iterator
from typing import Any

import pytest

from compat.foreign import Foreign
from modules.assembly import build_services
from modules.errors import FeatherweightError, InvalidValueError
from modules.flags.flags import Flags
from modules.processing.engine.status import ModelFacts
from modules.services import Services
from modules.ui.common.messages import error_box
from modules.ui.form.form import FIELDS, form_values, parse_overrides, pasted_fields, request_of, show_override
from modules.ui.form.scales import scales_line
from modules.ui.tabs.settings_form import changed_values, shown_values, visible_settings

FORM: dict[str, Any] = {
    "prompt": "a cat",
    "negative_prompt": "",
    "styles": [],
    "sampler": "Euler",
    "scheduler": "Karras",
    "steps": 5,
    "width": 64,
    "height": 128,
    "batch_count": 1,
    "batch_size": 2,
    "cfg_scale": 7,
    "distilled_cfg_scale": 3.5,
    "seed": 3,
    "subseed": None,
    "subseed_strength": 0,
    "seed_resize_from_width": 0,
    "seed_resize_from_height": 0,
    "refiner_checkpoint": "None",
    "refiner_switch_at": 0.8,
    "hires_enabled": False,
    "hires_checkpoint": "Use same checkpoint",
    "hires_sampler": "Use same sampler",
    "hires_prompt": "",
    "hires_negative_prompt": "",
    "hires_scheduler": "Use same scheduler",
    "hires_resize_width": 0,
    "hires_resize_height": 0,
    "hires_denoising_strength": 0.7,
    "hires_scale": 2,
    "hires_steps": 0,
    "hires_distilled_cfg_scale": 0,
    "hires_upscaler": "Latent",
    "overrides": [],
}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = build_services(Flags(data_dir=str(tmp_path_factory.mktemp("data"))), foreign=Foreign())
    yield services
    services.dispatcher.close()


def test_the_form_covers_every_field() -> None:
    assert tuple(FORM) == FIELDS


def test_a_filled_form_is_a_request(services: Services) -> None:
    request = request_of(FORM, services)
    assert (request.prompt, request.size_px, request.batch_size, request.seed) == ("a cat", (64, 128), 2, 3)
    assert request.subseed == -1 and request.hires is None


def test_hires_fields_are_used_when_it_is_on(services: Services) -> None:
    request = request_of({**FORM, "hires_enabled": True, "hires_sampler": "DPM2", "hires_resize_width": 128}, services)
    assert request.hires is not None
    assert (request.hires.sampler, request.hires.scheduler, request.hires.resize_width) == ("DPM2", None, 128)


def test_styles_are_applied(services: Services) -> None:
    services.paths.styles_files[0].write_text('name,prompt,negative_prompt\noil,"{prompt}, oil painting",photo\n')
    request = request_of({**FORM, "styles": ["oil"]}, services)
    assert (request.prompt, request.negative_prompt) == ("a cat, oil painting", "photo")


def test_overrides_reach_the_snapshot_only(services: Services) -> None:
    request = request_of({**FORM, "overrides": ["Clip skip: 2", "Eta: 0.5"]}, services)
    assert request.settings["CLIP_stop_at_last_layers"] == 2
    assert request.settings["eta_ancestral"] == 0.5
    assert services.settings.current["CLIP_stop_at_last_layers"] == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"sampler": "Oiler"},
        {"width": 3},
        {"overrides": ["Clip skip: many"]},
        {"overrides": ["nonsense"]},
        {"styles": ["gone"]},
    ],
)
def test_what_cannot_be_is_an_error_for_the_user(services: Services, changes: dict[str, Any]) -> None:
    with pytest.raises(FeatherweightError):
        request_of({**FORM, **changes}, services)


def test_overrides_are_shown_and_read_back() -> None:
    shown = [
        show_override(setting, setting.default)
        for setting in visible_settings()
        if setting.infotext and isinstance(setting.default, bool | int | float)
    ]
    assert len(parse_overrides(shown)) == len(shown)


def test_a_pasted_infotext_fills_the_form_and_makes_the_same_request(services: Services) -> None:
    text = (
        "a dog\nNegative prompt: ugly\nSteps: 7, Sampler: Euler a, Schedule type: Karras, CFG scale: 5.5, Seed: 42, "
        "Size: 192x256, Denoising strength: 0.4, Clip skip: 2, Hires upscale: 1.5, Hires upscaler: Lanczos, Version: v1"
    )
    form = {**FORM, **form_values(pasted_fields(text, services), services)}
    request = request_of(form, services)
    assert (request.prompt, request.negative_prompt, request.sampler) == ("a dog", "ugly", "Euler a")
    assert (request.steps, request.cfg_scale, request.seed, request.size_px) == (7, 5.5, 42, (192, 256))
    assert request.settings["CLIP_stop_at_last_layers"] == 2
    assert request.hires is not None
    assert (request.hires.scale, request.hires.upscaler, request.hires.denoising_strength) == (1.5, "Lanczos", 0.4)


def test_text_without_parameters_pastes_nothing(services: Services) -> None:
    assert form_values(pasted_fields("just a cat", services), services) == {}


def test_an_emptied_number_becomes_its_default(services: Services) -> None:
    assert request_of({**FORM, "seed": None}, services).seed == -1
    with pytest.raises(InvalidValueError):
        request_of({**FORM, "seed": -7}, services)


def test_only_changed_settings_are_stored(services: Services) -> None:
    values = shown_values(services.settings.current)
    assert changed_values(values, services.settings.current) == {}
    values |= {"CLIP_stop_at_last_layers": 2.0, "jpeg_quality": None}
    assert changed_values(values, services.settings.current) == {"CLIP_stop_at_last_layers": 2}


def test_the_scales_weigh_the_model() -> None:
    facts = ModelFacts("x", "SD 1.x", 1_066_235_307, 1_100_000_000, 2_132_470_614, "fp8 row", "cuda:0")
    assert scales_line(facts) == "SD 1.x · 1.07 B parameters · fp8 row · 1.1 GB · cuda:0"


def test_messages_are_escaped() -> None:
    assert "<script>" not in error_box("<script>alert(1)</script>")
