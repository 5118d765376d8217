"""A job that goes on after its server was killed makes what is missing, and comes out as if it had never stopped."""

from pathlib import Path

import pytest

from modules.processing.pipeline.generate import generate
from modules.processing.record.made import Made, MadeImage
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.result import GeneratedImage, ImageRole, Result
from tests.processing.test_engine import engine_of, folder, request

__all__ = ["folder"]


class Told(Silent):
    def __init__(self) -> None:
        self.saved: list[str] = []

    def saving(self, image: GeneratedImage, path: Path, fingerprint: str) -> None:
        self.saved.append(image.key)


def made_of(images: tuple[GeneratedImage, ...]) -> Made:
    found = [
        MadeImage(image.key, image.path, image.infotext, image.seed, image.subseed, image.role)
        for image in images
        if image.path is not None
    ]
    return {image.key: image for image in found}


def pixels(result: Result) -> list[bytes]:
    return [image.image.tobytes() for image in result.images]


@pytest.mark.parametrize("count", [1, 3])
def test_what_an_earlier_try_has_made_is_not_made_again_and_the_rest_is_equal(
    folder: Path, tmp_path: Path, count: int
) -> None:
    engine, wanted = engine_of(folder), request(sampler="DPM++ 2M SDE", batch_size=2, batch_count=2)
    whole = generate(wanted, engine, Output(tmp_path / "whole"), Told())
    samples = [image for image in whole.images if image.role is ImageRole.SAMPLE]
    told = Told()
    rest = generate(wanted, engine, Output(tmp_path / "rest"), told, made=made_of(tuple(samples[:count])))
    assert told.saved == [f"{number // 2}/{number % 2}" for number in range(count, 4)] + ["grid"]
    assert pixels(rest) == pixels(whole)
    assert [image.infotext for image in rest.images] == [image.infotext for image in whole.images]
    assert rest.info.seeds == whole.info.seeds


def test_a_job_that_was_killed_at_its_very_end_makes_nothing(folder: Path, tmp_path: Path) -> None:
    engine, wanted = engine_of(folder), request(batch_count=2)
    whole = generate(wanted, engine, Output(tmp_path), Silent())
    told = Told()
    again = generate(wanted, engine, Output(tmp_path), told, made=made_of(whole.images))
    assert told.saved == [] and pixels(again) == pixels(whole)


def test_an_image_that_the_user_has_taken_away_is_not_made_again(folder: Path, tmp_path: Path) -> None:
    engine, wanted = engine_of(folder), request(batch_count=2, save_grid=False)
    whole = generate(wanted, engine, Output(tmp_path), Silent())
    made = made_of(whole.images[:1])
    made["0/0"].path.unlink()
    rest = generate(wanted, engine, Output(tmp_path), Silent(), made=made)
    assert [image.seed for image in rest.samples] == [2]
    assert "which is no longer there" in " ".join(rest.notices)
