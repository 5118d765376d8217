"""The LoRAs in the box: they apply wholly to the bundled model, change its image as they say, also in fp8."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from lib_training.base_model import file_hashes
from lib_training.preview import PreviewRenderer, PreviewSample
from modules.adapters.adapter_file import read_adapter_file
from modules.adapters.catalogue import AdapterCatalogue
from modules.settings.values import Settings
from recipes.loras.blueprint import PAPER
from recipes.loras.example import CONFIGS, EXAMPLES, LORAS, SHIPPED
from recipes.scenes.palette import COLORS
from recipes.scenes.scoring import background_color

FP8_ROW = Settings().with_changes({"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn_row"})
MAX_BYTES = 2_000_000


@pytest.fixture(scope="module")
def renderer() -> Iterator[PreviewRenderer]:
    renderer = PreviewRenderer(SHIPPED, LORAS, CONFIGS, torch.device("cpu"))
    yield renderer
    renderer.close()


def draw(renderer: PreviewRenderer, prompt: str, settings: Settings | None = None) -> NDArray[np.int64]:
    drawing = PreviewSample(prompt=prompt, seed=7, side_px=128, steps=10, settings=settings or Settings())
    return np.asarray(renderer.draw(drawing)).astype(np.int64)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_the_file_is_small_and_says_what_it_is_for(name: str) -> None:
    path = LORAS / f"{name}.safetensors"
    assert path.stat().st_size < MAX_BYTES
    assert max(adapter.rank or 0 for adapter in read_adapter_file(path).adapters.values()) <= 8
    info = AdapterCatalogue((LORAS,)).find(name)
    assert info is not None
    assert info.metadata["ss_new_sd_model_hash"] == file_hashes(SHIPPED).sha256
    card = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert card["activation text"] == EXAMPLES.get(name).activation
    with Image.open(path.with_suffix(".png")) as preview:
        assert preview.size == (128, 128)


def test_the_style_makes_blue_paper_of_any_color(renderer: PreviewRenderer) -> None:
    prompt = "a large yellow circle on a red background"
    without, with_style = draw(renderer, prompt), draw(renderer, f"{prompt}, blueprint <lora:blueprint:1>")
    assert background_color(without.astype(np.uint8)) == "red"
    edge = np.median(with_style[:6].reshape(-1, 3), axis=0)
    assert np.abs(edge - np.array(PAPER)).max() < 45
    bright = (with_style.min(axis=-1) > 170).mean()
    assert 0.01 < bright < 0.3  # lines, no areas


def test_the_object_appears_in_its_color(renderer: PreviewRenderer) -> None:
    prompt = "a red balloon on a white background"
    with_object = draw(renderer, f"{prompt} <lora:balloon:1>")
    assert background_color(with_object.astype(np.uint8)) == "white"
    near = np.abs(with_object - np.array(COLORS["red"])).max(axis=-1) < 60
    rows, columns = np.nonzero(near)
    assert near.mean() > 0.08
    upper, lower = near[rows.min() : int(np.median(rows))], near[int(np.median(rows)) : rows.max()]
    assert upper.any(axis=0).sum() >= lower.any(axis=0).sum()  # it narrows towards the basket
    assert columns.max() - columns.min() > 40


def test_both_in_fp8_are_as_in_16_bit(renderer: PreviewRenderer) -> None:
    prompt = "a green balloon on a pink background, blueprint"
    tags = "<lora:blueprint:1><lora:balloon:1>"
    base, wide = draw(renderer, prompt), draw(renderer, f"{prompt} {tags}")
    narrow = draw(renderer, f"{prompt} {tags}", FP8_ROW)
    assert np.abs(narrow - wide).mean() < 0.35 * np.abs(wide - base).mean()
