"""Masks on a made-up GPU: networks are stored as the model is, next to it, and leave with it; whole images are made
from what words name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageChops

from modules.scripts.library import ScriptLibrary
from modules.scripts.program import Program
from modules.settings.values import Settings
from tests.detection import segmentation_files as files
from tests.extensions import built_in
from tests.fake_gpu import FakeCard, fake_gpu
from tests.fake_gpu.jobs import leave
from tests.fake_gpu.test_features import tiny_engine_of
from tests.recordings import TINY
from tests.scripts.test_detailer import BUILT_IN
from tests.scripts.toys import image_request, run
from tests.thorough import thoroughly

CHECKPOINT = {"sd_model_checkpoint": TINY.name}
FP8 = {"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn_row"}
MIN_AGREEMENT = 0.9
"""The share of pixels in which a mask of 8-bit weights is that of full ones: random weights have many logits near 0."""


@pytest.fixture
def card() -> Iterator[FakeCard]:
    with fake_gpu("cuda", 8) as card:
        yield card


def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))


@pytest.mark.parametrize("settings", [FP8, thoroughly({}), thoroughly({**FP8, "stream_weights": "Layers"})])
def test_clicks_and_words_on_the_card(tmp_path: Path, card: FakeCard, settings: dict[str, Any]) -> None:
    built_in()
    library = {name: sys.modules.get(f"lib_segmentation.{name}") for name in ("segmenter", "asked")}
    engine = tiny_engine_of(tmp_path, settings=Settings().with_changes(settings))
    program = Program(folders=lambda name: (tmp_path / name,), compute_alone=engine.compute_alone)
    segmenter = library["segmenter"].Segmenter(program)  # type: ignore[union-attr]
    point = library["asked"].Point(20, 30)  # type: ignore[union-attr]
    files.save(files.sam(), tmp_path / "segmentation" / "sam2" / "model.safetensors", config=True)
    files.save(files.clipseg(2), tmp_path / "segmentation" / "clipseg" / "model.safetensors", config=True)
    found = segmenter.by_points(photo(), [point])
    held = card.memory.allocated
    again = segmenter.by_points(photo(), [point])
    assert found.outline.tobytes() == again.outline.tobytes() and segmenter.seen.encoded == 1
    assert card.memory.allocated <= held, "features wait in main memory"
    (thing,) = segmenter.by_words(photo(), "cat", 0.0)
    assert thing.outline.getextrema() == (255, 255)
    assert len(engine.auxiliaries.here) == 2
    leave(engine)
    assert card.memory.tensors == 0
    with files.running(tmp_path / "cpu") as (_, on_cpu):
        there = Program(folders=program.folders, compute_alone=on_cpu.compute_alone)
        wanted = library["segmenter"].Segmenter(there).by_points(photo(), [point])  # type: ignore[union-attr]
    assert (np.asarray(wanted.outline) == np.asarray(found.outline)).mean() > MIN_AGREEMENT


def test_a_whole_image_of_what_a_word_names(tmp_path: Path, card: FakeCard) -> None:
    engine = tiny_engine_of(tmp_path)
    program = Program(folders=lambda name: (tmp_path / name,), compute_alone=engine.compute_alone)
    off = [path.name for path in BUILT_IN.iterdir() if path.name != "segmentation"]
    library = ScriptLibrary.load([BUILT_IN], off, program=program)
    engine.adapters.add_types(library.adapters.types)
    files.save(files.clipseg(2), tmp_path / "segmentation" / "clipseg" / "model.safetensors", config=True)
    image = photo()
    asked = image_request(image=image, prompt="<segment:cat:score=0:grow=-8> a cat", steps=1)
    result = run(asked, engine, tmp_path, library)
    assert result.notices == ()
    changed = ImageChops.difference(result.samples[0].image, image).getbbox()
    assert changed == (0, 0, 64, 64), "everything is at least 0 likely"
    with pytest.raises(Exception, match="Nothing in the image is found for 'cat' with a score of 1"):
        run(image_request(image=image, prompt="<segment:cat:score=1>", steps=1), engine, tmp_path, library)
    leave(engine)
    assert card.memory.tensors == 0
