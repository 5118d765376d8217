"""Krea 2 with references, as its edit LoRAs need them: in one sequence with the image, against diffusers' transformer,
and in the text, against transformers' model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modules.models.families.denoiser_context import DenoiserContext, stacked_references
from modules.models.text_encoders.llm_texts import DESCRIBED, DESCRIBED_SYSTEM_TOKENS, SEEN
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.request.source_images import FromImage, FromNoise, SourceImage, fitted_into
from modules.settings.values import Settings
from tests.processing.test_krea2 import PROMPT, STATES, WIDTH, modules, write_krea2
from tests.processing.test_qwen_image21 import Processor
from tests.processing.test_qwen_image_edit import picture
from tests.processing.test_z_image import engine_of, made, pixels, relative


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    return modules(depth=18, hidden_size=64, num_heads=16, deepstack_visual_indexes=[5, 11, 17])


@pytest.fixture(scope="module")
def root(parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_krea2(tmp_path_factory.mktemp("krea2"), parts)


def test_the_velocity_next_to_references_is_that_of_a_sequence_of_frames(parts: dict[str, Any], root: Path) -> None:
    """In front of the image, and each in its middle, as edit LoRAs were trained."""
    model = engine_of(root).model(None, PrecisionOptions.of(Settings()))
    generator = torch.Generator().manual_seed(6)
    x, *shown = (torch.randn(1, 16, *size, generator=generator) for size in ((10, 6), (10, 6), (6, 4)))
    tokens, sigma = torch.randn(1, 7, STATES, WIDTH, generator=generator), torch.tensor([0.7])
    rows, places = [], [torch.zeros(7, 3)]
    for frame, latents, corner in ((1, shown[0], (0, 0)), (2, shown[1], (1, 0.5)), (0, x, (0, 0))):
        height, width = latents.shape[-2] // 2, latents.shape[-1] // 2
        patches = latents.reshape(1, 16, height, 2, width, 2).permute(0, 2, 4, 1, 3, 5)
        rows.append(patches.reshape(1, height * width, 64))
        grid = torch.cartesian_prod(torch.tensor([frame]), torch.arange(height), torch.arange(width)).float()
        places.append(grid + torch.tensor([0, *corner]))
    with torch.no_grad():
        whole = torch.cat(rows, dim=1), tokens, sigma, torch.cat(places)
        wanted = parts["transformer"](*whole, return_dict=False)[0][:, -15:]
    image = wanted.reshape(1, 5, 3, 16, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(1, 16, 10, 6)
    found = model.predict(x, 1000 * sigma, DenoiserContext(tokens.flatten(2), image=stacked_references(shown)))
    assert relative(found, image) < 1e-4


@pytest.mark.parametrize("count", [1, 2])
def test_references_are_seen_with_the_text(parts: dict[str, Any], root: Path, count: int) -> None:
    images = [picture(size, seed) for seed, size in enumerate(((96, 64), (64, 128))[:count])]
    words = f"{DESCRIBED.split('{}')[0]}{SEEN * count}{PROMPT}{DESCRIBED.split('{}')[1]}"
    given = vars(Processor()(text=[words], images=images))
    given.pop("to")
    with torch.no_grad():
        states = parts["text"](**given, output_hidden_states=True).hidden_states
    wanted = torch.cat([states[number] for number in range(2, 36, 3)], dim=-1)[0, DESCRIBED_SYSTEM_TOKENS:]
    encoded = engine_of(root).conditioner(None).encode([PROMPT], [""], 4, Settings(), (64, 64), images=[images])
    ((found, _),) = encoded.prompts[0].at(0)
    assert found.crossattn.shape == wanted.shape and relative(found.crossattn, wanted) < 1e-4


def test_references_change_the_image_and_the_image_of_img2img_is_none_of_them(root: Path) -> None:
    engine, reference = engine_of(root), SourceImage.of(picture((128, 96), 1))
    plain, notices = made(engine, root), []
    shown = made(engine, root, start=FromNoise((reference,)))
    assert np.abs(pixels(shown) - pixels(plain)).mean() > 0.5
    notices = [*plain.notices, *shown.notices]
    start = FromImage(images=(reference,), denoising_strength=0.5)
    alone = made(engine, root, start=start)
    both = made(engine, root, start=replace(start, references=(reference,)))
    assert np.abs(pixels(both) - pixels(alone)).mean() > 0.1
    assert not any("edits images" in str(each) for each in (*notices, *alone.notices, *both.notices))


@pytest.mark.parametrize(
    ("size", "fitted"),
    [((400, 300), (640, 480)), ((820, 600), (640, 480)), ((300, 300), (480, 480)), ((2000, 100), (640, 32))],
)
def test_references_are_fitted_into_the_image(size: tuple[int, int], fitted: tuple[int, int]) -> None:
    """Cut to it where the proportions are nearly the same."""
    assert fitted_into(Image.new("RGB", size), (640, 480)).size == fitted
