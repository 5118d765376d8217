"""A refiner or hires checkpoint that cannot go on from the latents of the model before is refused before it begins."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from modules.errors import InvalidValueError
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.hooks import Hooks
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.result import Result
from tests.models.family_files import write_family
from tests.recordings import CONFIGS, cpu_machine

HIRES: dict[str, Any] = {"scale": 1.0, "denoising_strength": 0.5}


class Counting(Hooks):
    """How often something was sampled."""

    batches = 0

    def batch(self, draft: Any) -> None:
        self.batches += 1


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("followers")
    for name in ("sd1", "sd2", "sdxl", "sd3"):
        write_family(folder, name)
    shutil.copy(folder / "sdxl.safetensors", folder / "sdxl_rectified.safetensors")
    return Engine(CheckpointCatalogue([folder], HashCache(folder / "hashes.json")), CONFIGS, cpu_machine)


def made(engine: Engine, hooks: Hooks | None = None, **changes: Any) -> Result:
    fields = {"prompt": "a cat", "width": 64, "height": 64, "seed": 1, "subseed": 0, "steps": 2, "sampler": "Euler"}
    request = GenerationRequest(**{**fields, "save_images": False, **changes})
    return generate(request, engine, Output(Path()), Silent(), hooks or Hooks())


@pytest.mark.parametrize("pair", [("sd1", "sdxl"), ("sdxl", "sd2"), ("sd1", "sd3"), ("sd3", "sdxl")])
@pytest.mark.parametrize("role", ["refiner", "hires checkpoint"])
def test_other_latents_are_refused_by_name(engine: Engine, role: str, pair: tuple[str, str]) -> None:
    first, other = pair
    follower: dict[str, Any] = {"refiner_checkpoint": other, "refiner_switch_at": 0.5}
    if role == "hires checkpoint":
        follower = {"hires": HiresRequest(**HIRES, checkpoint=other)}
    hooks = Counting()
    names = rf"The {role} {other}\.safetensors \(.*\) cannot go on from what {first}\.safetensors \(.*\) has made"
    with pytest.raises(InvalidValueError, match=rf"{names}: its latents are others\. Choose one"):
        made(engine, hooks, checkpoint=first, **follower)
    assert hooks.batches == 0


def test_a_flow_does_not_go_on_from_noise_in_one_pass_and_does_in_two(engine: Engine) -> None:
    with pytest.raises(InvalidValueError, match="one of them predicts a flow, and the other noise"):
        made(engine, checkpoint="sdxl", refiner_checkpoint="sdxl_rectified", refiner_switch_at=0.5)
    hires = HiresRequest(**HIRES, checkpoint="sdxl_rectified")
    result = made(engine, checkpoint="sdxl", hires=hires)
    assert "Hires checkpoint: sdxl_rectified" in result.samples[0].infotext


def test_a_refiner_of_the_second_pass_is_compared_with_the_hires_checkpoint(engine: Engine) -> None:
    hires = HiresRequest(**HIRES, checkpoint="sdxl_rectified")
    with pytest.raises(InvalidValueError, match=r"The refiner sdxl\.safetensors .* from what sdxl_rectified"):
        made(engine, checkpoint="sdxl", hires=hires, refiner_checkpoint="sdxl", refiner_switch_at=0.5)


def test_families_with_the_same_latents_go_on(engine: Engine) -> None:
    result = made(engine, checkpoint="sd1", refiner_checkpoint="sd2", refiner_switch_at=0.5)
    assert "Refiner: sd2" in result.samples[0].infotext
