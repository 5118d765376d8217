"""Krea 2 with references, as its edit LoRAs need them: in one sequence with the image, against diffusers' transformer,
and in the text, against transformers' model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from modules.models.families.denoiser_context import (
    CLEAN_REFERENCE,
    ISOLATED_REFERENCE,
    REFERENCE,
    DenoiserContext,
    stacked_references,
)
from modules.models.text_encoders.llm_texts import DESCRIBED, DESCRIBED_SYSTEM_TOKENS, SEEN
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.request.result import Result
from modules.processing.request.source_images import FromImage, FromNoise, SourceImage, fitted_into
from modules.settings.values import Settings
from tests.extensions import adapters_of
from tests.processing.test_krea2 import PROMPT, STATES, WIDTH, modules, write_krea2
from tests.processing.test_qwen_image21 import Processor
from tests.processing.test_qwen_image_edit import picture
from tests.processing.test_z_image import engine_of, made, pixels, relative

REFERENCES = ("Automatic", "Identity Edit", "AI Toolkit", "AI Toolkit (KV cache)")


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    return modules(depth=18, hidden_size=64, num_heads=16, deepstack_visual_indexes=[5, 11, 17])


@pytest.fixture(scope="module")
def root(parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_krea2(tmp_path_factory.mktemp("krea2"), parts)


def test_the_velocity_next_to_references_is_that_of_a_sequence_of_frames(parts: dict[str, Any], root: Path) -> None:
    """In front of the image, and each in its middle, as edit LoRAs were trained."""
    model = engine_of(root).model(None, PrecisionOptions.of(Settings()))
    x, shown, tokens = drawn(1)
    sequence, places = in_one_sequence(((1, shown[0], (0, 0)), (2, shown[1], (1, 0.5)), (0, x, (0, 0))))
    with torch.no_grad():
        wanted = parts["transformer"](sequence, tokens, torch.tensor([0.7]), places, return_dict=False)[0][:, -15:]
    context = DenoiserContext(tokens.flatten(2), image=stacked_references(shown))
    assert relative(model.predict(x, torch.tensor([700.0]), context), as_image(wanted)) < 1e-4


@pytest.mark.parametrize("shown_as", [CLEAN_REFERENCE, ISOLATED_REFERENCE])
def test_references_at_time_0_have_the_modulation_of_that_time(
    parts: dict[str, Any], root: Path, shown_as: str
) -> None:
    """Against diffusers' own blocks with a modulation for each token."""
    model, module = engine_of(root).model(None, PrecisionOptions.of(Settings())), parts["transformer"]
    x, shown, tokens = drawn(2)
    sequence, places = in_one_sequence(((0, x, (0, 0)), (1, shown[0], (0, 0)), (2, shown[1], (0, 0))))
    sigma, first, whole = torch.tensor([0.7, 0.2]), 7 + 15, 7 + sequence.shape[1]
    sees = torch.ones(whole, whole, dtype=torch.bool)
    sees[first:, :first] = shown_as == CLEAN_REFERENCE
    with torch.no_grad():
        times, zero = (module.time_embed(each, torch.float32) for each in (sigma, torch.zeros(2)))
        gains = [module.time_mod_proj(torch.nn.functional.gelu(each, approximate="tanh")) for each in (times, zero)]
        modulation = torch.cat([gains[0].expand(-1, first, -1), gains[1].expand(-1, whole - first, -1)], dim=1)
        hidden = torch.cat([module.txt_in(module.text_fusion(tokens)), module.img_in(sequence)], dim=1)
        for block in module.transformer_blocks:
            hidden = block(hidden, modulation, module.rotary_emb(places), sees[None, None])
        wanted = module.final_layer(hidden, times)[:, 7:first]
    model.shown_as = shown_as
    context = DenoiserContext(
        tokens.flatten(2), image=stacked_references([each.expand(2, -1, -1, -1) for each in shown])
    )
    assert relative(model.predict(x, 1000 * sigma, context), as_image(wanted)) < 1e-4


def drawn(count: int) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """Latents of so many images, of two references, and a text."""
    generator = torch.Generator().manual_seed(6)
    x, *shown = (
        torch.randn(n, 16, *size, generator=generator) for n, size in ((count, (10, 6)), (1, (10, 6)), (1, (6, 4)))
    )
    return x, shown, torch.randn(count, 7, STATES, WIDTH, generator=generator)


def in_one_sequence(
    frames: Sequence[tuple[int, torch.Tensor, tuple[float, float]]],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Patches of latents in a row, and the places of seven tokens of text and of these, each frame from a corner on."""
    rows, places, count = [], [torch.zeros(7, 3)], max(len(latents) for _, latents, _ in frames)
    for frame, latents, corner in frames:
        height, width = latents.shape[-2] // 2, latents.shape[-1] // 2
        patches = latents.reshape(-1, 16, height, 2, width, 2).permute(0, 2, 4, 1, 3, 5)
        rows.append(patches.reshape(-1, height * width, 64).expand(count, -1, -1))
        grid = torch.cartesian_prod(torch.tensor([frame]), torch.arange(height), torch.arange(width)).float()
        places.append(grid + torch.tensor([0, *corner]))
    return torch.cat(rows, dim=1), torch.cat(places)


def as_image(patches: torch.Tensor) -> torch.Tensor:
    return patches.reshape(-1, 5, 3, 16, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(-1, 16, 10, 6)


@pytest.mark.parametrize(
    ("shown_as", "before"),
    [
        (REFERENCE, SEEN),
        (REFERENCE, SEEN * 2),
        (CLEAN_REFERENCE, f"Picture 1: {SEEN}Picture 2: {SEEN}"),
        (ISOLATED_REFERENCE, f"Picture 1: {SEEN}"),
    ],
)
def test_references_are_seen_with_the_text(parts: dict[str, Any], root: Path, shown_as: str, before: str) -> None:
    images = [picture(size, seed) for seed, size in enumerate(((96, 64), (64, 128))[: before.count(SEEN)])]
    words = f"{DESCRIBED.split('{}')[0]}{before}{PROMPT}{DESCRIBED.split('{}')[1]}"
    given = vars(Processor()(text=[words], images=images))
    given.pop("to")
    with torch.no_grad():
        states = parts["text"](**given, output_hidden_states=True).hidden_states
    wanted = torch.cat([states[number] for number in range(2, 36, 3)], dim=-1)[0, DESCRIBED_SYSTEM_TOKENS:]
    engine = engine_of(root)
    engine.model(None, PrecisionOptions.of(Settings())).shown_as = shown_as
    encoded = engine.conditioner(None).encode([PROMPT], [""], 4, Settings(), (64, 64), images=[images])
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


def test_the_file_of_an_edit_lora_says_how_references_are_shown(parts: dict[str, Any], root: Path) -> None:
    """A setting has the last word, and is recorded."""
    layer = parts["transformer"].transformer_blocks[0].attn.to_q
    name, (height, width) = "diffusion_model.blocks.0.attn.wq.lora_{}.weight", layer.weight.shape
    tensors = {name.format("A"): torch.ones(2, width), name.format("B"): torch.zeros(height, 2)}
    folder = root / "Lora"
    folder.mkdir()
    save_file(tensors, folder / "edit.safetensors", {"software": '{"name": "ai-toolkit", "version": "0.10.19"}'})
    save_file(tensors, folder / "other.safetensors", {"software": "mine"})
    engine = engine_of(root, adapters_of(folder))
    start = FromNoise((SourceImage.of(picture((80, 48), 1)),))
    asked = {name: Settings({"krea2_references": name}) for name in REFERENCES}

    def drawn_with(lora: str, settings: Settings) -> Result:
        return made(engine, root, settings, prompt=f"a fox <lora:{lora}:1>", start=start, width=64, height=64, steps=2)

    images = {name: drawn_with("edit", settings) for name, settings in asked.items()}
    automatic, identity, toolkit, cached = (pixels(images[name]) for name in REFERENCES)
    assert np.array_equal(automatic, toolkit)
    assert np.abs(identity - toolkit).mean() > 0.1 and np.abs(cached - toolkit).mean() > 0.01
    assert np.array_equal(pixels(drawn_with("other", Settings())), identity)
    texts = [images[name].images[0].infotext for name in REFERENCES]
    assert ["Krea 2 references" in text for text in texts] == [False, True, True, True]
