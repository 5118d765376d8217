import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.errors import InvalidValueError, UnknownNameError
from modules.models.files.catalogue import CheckpointCatalogue
from modules.processing.pipeline.generate import with_old_hires_sizes
from modules.processing.request.checking import check_names
from modules.processing.request.request import GenerationRequest, HiresRequest, request_from_json, request_to_json
from modules.processing.request.stages import hires_size, old_first_pass_size
from modules.settings.values import Settings
from tests.recordings import tiny_engine


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"width": 0}, "width is 0; allowed is 16 to 8192"),
        ({"width": 7}, "width is 7"),
        ({"height": 100_000}, "height is 100000"),
        ({"steps": 10_000}, "steps is 10000; allowed is 1 to 1000"),
        ({"steps": 0}, "steps is 0"),
        ({"batch_size": 0}, "batch size is 0"),
        ({"batch_count": 0}, "batch count is 0"),
        ({"cfg_scale": float("nan")}, "CFG scale is nan"),
        ({"seed": -2}, "seed is -2"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"subseed_strength": 1.5}, "variation strength is 1.5"),
        ({"prompt": "a\0b"}, "prompt holds a null character at position 1"),
        ({"negative_prompt": "x" * 300_000}, "negative prompt is 300000 characters long"),
    ],
)
def test_impossible_values_are_refused_with_what_is_allowed(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        GenerationRequest(**values)


@pytest.mark.parametrize("values", [{"scale": 0.5}, {"denoising_strength": 2}, {"steps": -1}, {"resize_width": -8}])
def test_impossible_hires_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match="allowed is"):
        HiresRequest(**values)


@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.integers(16, 8192),
    st.integers(-1, 2**64 - 1),
    st.booleans(),
)
def test_a_request_survives_its_record(prompt: str, width: int, seed: int, with_hires: bool) -> None:
    request = GenerationRequest(
        prompt=prompt,
        width=width,
        seed=seed,
        styles=("a", "b"),
        hires=HiresRequest(prompt=prompt) if with_hires else None,
        settings=Settings().changed(eta_ddim=0.5, CLIP_stop_at_last_layers=2),
        override_settings={"eta_ddim": 0.5},
    )
    assert request_from_json(json.loads(json.dumps(request_to_json(request)))) == request


def test_sizes_are_cut_to_multiples_of_eight() -> None:
    assert GenerationRequest(width=70, height=65).size_px == (64, 64)


@pytest.mark.parametrize(
    ("hires", "upscale_to", "cut"),
    [
        (HiresRequest(scale=2), (1024, 768), (0, 0)),
        (HiresRequest(resize_width=1024), (1024, 768), (0, 0)),
        (HiresRequest(resize_height=768), (1024, 768), (0, 0)),
        (HiresRequest(resize_width=1024, resize_height=512), (1024, 768), (0, 32)),
        (HiresRequest(resize_width=768, resize_height=768), (1024, 768), (32, 0)),
    ],
)
def test_the_second_pass_has_the_size_of_the_rule(
    hires: HiresRequest, upscale_to: tuple[int, int], cut: tuple[int, int]
) -> None:
    size = hires_size(512, 384, hires)
    assert (size.upscale_to, size.cut) == (upscale_to, cut)


def test_the_old_rule_makes_the_first_pass_half_a_megapixel() -> None:
    assert old_first_pass_size(128, 128) == (512, 512)
    assert old_first_pass_size(1024, 512) == (768, 384)
    request = GenerationRequest(width=128, height=192, hires=HiresRequest(scale=3))
    assert with_old_hires_sizes(request) is request
    old = with_old_hires_sizes(replace(request, settings=Settings().changed(use_old_hires_fix_width_height=True)))
    assert old.size_px == old_first_pass_size(128, 192) and old.hires is not None
    assert (old.hires.resize_width, old.hires.resize_height) == (128, 192)


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> CheckpointCatalogue:
    return tiny_engine(tmp_path_factory.mktemp("cache")).catalogue


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"sampler": "Oiler"}, "sampler 'Oiler'. Did you mean 'Euler'"),
        ({"scheduler": "Caras"}, "scheduler 'Caras'"),
        ({"checkpoint": "gone"}, "checkpoint 'gone'"),
        ({"hires": HiresRequest(upscaler="Blur")}, "hires upscaler 'Blur'"),
        ({"hires": HiresRequest(sampler="Oiler")}, "sampler 'Oiler'"),
    ],
)
def test_names_that_do_not_exist_are_answered_with_those_that_do(
    values: dict[str, Any], kind: str, catalogue: CheckpointCatalogue
) -> None:
    with pytest.raises(UnknownNameError, match=f"{kind}.*Known: "):
        check_names(GenerationRequest(**values), catalogue)
