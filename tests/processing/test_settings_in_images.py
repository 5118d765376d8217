"""Settings that change an image: what they do to it, and that it says so and can be made again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modules.errors import Interrupted, Skipped
from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.models.autoencoders.autoencoder import PreviewFactors
from modules.processing.engine.engine import Engine
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.result import GeneratedImage
from modules.settings.values import Settings
from tests.models.family_files import kl

OLD = {"use_old_emphasis_implementation": True}
EARLY = {"hires_fix_use_firstpass_conds": True}
TINY = Settings().changed(sd_model_checkpoint="tiny-sd1.safetensors", grid_save=False, return_grid=False)
HIRES = HiresRequest(scale=1.5, steps=2, denoising_strength=0.7)


def made(
    engine: Engine, prompt: str, settings: dict[str, Any] | None = None, hires_prompt: str | None = None
) -> GeneratedImage:
    request = GenerationRequest(
        prompt=prompt,
        width=64,
        height=64,
        steps=3,
        seed=5,
        subseed=0,
        sampler="Euler",
        hires=None if hires_prompt is None else replace(HIRES, prompt=hires_prompt),
        settings=TINY.with_changes({"samples_save": False, **(settings or {})}),
    )
    return generate(request, engine, Output(Path()), Silent()).images[0]


def same(first: GeneratedImage, second: GeneratedImage) -> bool:
    return bool((np.asarray(first.image) == np.asarray(second.image)).all())


def pasted(image: GeneratedImage) -> dict[str, Any]:
    """The settings that pasting the image's infotext would override."""
    return override_settings_from(parse_infotext(image.infotext), Settings())


def test_old_emphasis_weighs_by_brackets_and_knows_no_written_weights(engine: Engine) -> None:
    new = made(engine, "a (red:1.1) cat")
    assert same(made(engine, "a (red) cat", OLD), new)
    assert not same(made(engine, "a (red:1.5) cat", OLD), made(engine, "a (red:1.5) cat"))
    assert same(made(engine, "a (red:1.1) cat"), new)


def test_old_emphasis_is_recorded_and_pasted(engine: Engine) -> None:
    assert pasted(made(engine, "a (red) cat", OLD))["use_old_emphasis_implementation"] is True
    assert "use_old_emphasis_implementation" not in pasted(made(engine, "a (red) cat"))


def test_hires_prompts_can_be_encoded_with_the_adapters_of_the_first_pass(engine: Engine) -> None:
    on_both, on_unet = "a cat <lora:tiny-lora-a:1:1>", "a cat <lora:tiny-lora-a:0:1>"
    early = made(engine, "a cat", EARLY, on_both)
    assert same(early, made(engine, "a cat", {}, on_unet))
    assert not same(early, made(engine, "a cat", {}, on_both))
    assert pasted(early)["hires_fix_use_firstpass_conds"] is True


class Watching(Silent):
    """Keeps the previews."""

    def __init__(self) -> None:
        self.previews: list[Image.Image] = []

    def wants_preview(self, done: int) -> bool:
        return True

    def preview(self, image: Image.Image) -> None:
        self.previews.append(image)


@pytest.mark.parametrize(("as_grid", "width"), [(True, 128), (False, 64)])
def test_previews_show_the_whole_batch_or_its_first_image(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, as_grid: bool, width: int
) -> None:
    made(engine, "a cat")
    model = engine._model
    assert model is not None
    shown = replace(kl(model.architecture), preview=PreviewFactors(((0.1, 0.2, 0.3),) * 4))
    monkeypatch.setattr(model, "architecture", replace(model.architecture, autoencoder=shown))
    settings = TINY.changed(samples_save=False, show_progress_grid=as_grid)
    request = GenerationRequest(
        prompt="a cat", width=64, height=64, steps=1, seed=5, subseed=0, batch_size=2, settings=settings
    )
    watching = Watching()
    generate(request, engine, Output(Path()), watching)
    assert [image.size for image in watching.previews] == [(width, 64)]


def test_the_user_is_recorded_where_asked_and_may_stand_in_file_names(engine: Engine, tmp_path: Path) -> None:
    for wanted in (False, True):
        settings = TINY.changed(add_user_name_to_info=wanted, samples_filename_pattern="[user]", save_to_dirs=False)
        request = GenerationRequest(
            prompt="a cat", width=64, height=64, steps=1, seed=5, subseed=0, user="ada", settings=settings
        )
        image = generate(request, engine, Output(tmp_path), Silent()).images[0]
        assert image.infotext.endswith(", User: ada") is wanted
        assert image.path is not None and image.path.stem.endswith("-ada")


class StopAfterStep(Silent):
    """Raises as soon as a step is finished."""

    def __init__(self, done: int, error: Exception) -> None:
        self.stops_at, self.error = done, error
        self.done = 0

    def step(self, done: int, info: object = None) -> None:
        self.done = done

    def check(self) -> None:
        if self.done == self.stops_at:
            self.done = 0
            raise self.error


@pytest.mark.parametrize("saved", [False, True])
def test_a_stopped_image_is_shown_as_far_as_it_was_and_saved_where_asked(
    engine: Engine, tmp_path: Path, saved: bool
) -> None:
    settings = TINY.changed(save_incomplete_images=saved)
    whole = GenerationRequest(prompt="a cat", width=64, height=64, steps=4, seed=5, subseed=0, settings=settings)
    result = generate(whole, engine, Output(tmp_path), StopAfterStep(2, Interrupted("stop")))
    assert result.interrupted
    (unfinished,) = result.samples
    assert unfinished.seed == 5 and (unfinished.path is not None) is saved
    finished = generate(whole, engine, Output(tmp_path), Silent()).samples[0]
    assert not same(unfinished, finished)
    assert unfinished.infotext == finished.infotext


def test_a_stopped_second_pass_shows_the_larger_image(engine: Engine, tmp_path: Path) -> None:
    request = GenerationRequest(
        prompt="a cat", width=64, height=64, steps=2, seed=5, subseed=0, hires=HIRES, settings=TINY, batch_count=2
    )
    result = generate(request, engine, Output(tmp_path), StopAfterStep(3, Skipped("skip")))
    assert not result.interrupted
    assert [image.image.size for image in result.samples] == [(96, 96), (96, 96)]
    assert result.samples[0].path is None and result.samples[1].path is not None


def test_what_is_stopped_before_its_first_step_shows_nothing(engine: Engine, tmp_path: Path) -> None:
    request = GenerationRequest(prompt="a cat", width=64, height=64, steps=2, seed=5, subseed=0, settings=TINY)
    assert generate(request, engine, Output(tmp_path), StopAfterStep(0, Interrupted("stop"))).images == ()
