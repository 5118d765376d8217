"""Images with a VAE from a file of its own."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from modules.errors import CheckpointError
from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.models.autoencoders.files import VaeCatalogue
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import Result
from modules.settings.setting import SettingValue
from modules.settings.values import Settings
from tests.models.files import tiny_tensors, write_checkpoint
from tests.recordings import CONFIGS, cpu_machine

PREFIX = "first_stage_model."
QUIET = {"samples_save": False, "grid_save": False, "return_grid": False}


def other_vae() -> dict[str, Tensor]:
    """A VAE that makes darker images, named as in files of its own."""
    tensors = {k.removeprefix(PREFIX): v.clone() for k, v in tiny_tensors().items() if k.startswith(PREFIX)}
    tensors["decoder.conv_out.bias"] -= 0.5
    return tensors


def as_pickle(path: Path, tensors: Mapping[str, Tensor]) -> None:
    left_over = {"loss.logvar": torch.zeros(1), "model_ema.decay": torch.zeros(1)}
    torch.save({"state_dict": {**tensors, **left_over}}, path)


def as_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def as_checkpoint(path: Path, tensors: Mapping[str, Tensor]) -> None:
    torch.save(tiny_tensors() | {PREFIX + name: tensor for name, tensor in tensors.items()}, path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("models", "vae"):
        (tmp_path / name).mkdir()
    write_checkpoint(tmp_path / "models" / "tiny.safetensors", tiny_tensors())
    return tmp_path


def engine_of(root: Path) -> Engine:
    hashes = HashCache(root / "hashes.json")
    vaes = VaeCatalogue([root / "vae"], [root / "models"], hashes)
    return Engine(CheckpointCatalogue([root / "models"], hashes), CONFIGS, cpu_machine, models=ExtraModels(vaes=vaes))


def make(engine: Engine, root: Path, checkpoint: str = "tiny", **changes: SettingValue) -> Result:
    settings = Settings().with_changes({**QUIET, **changes})
    request = GenerationRequest(
        prompt="a dog",
        width=64,
        height=64,
        steps=1,
        seed=1,
        subseed=0,
        sampler="Euler",
        checkpoint=checkpoint,
        settings=settings,
    )
    return generate(request, engine, Output(root), Silent())


def pixels(result: Result) -> bytes:
    data: bytes = result.images[0].image.tobytes()
    return data


@pytest.mark.parametrize(
    ("name", "write"), [("x.vae.pt", as_pickle), ("x.safetensors", as_safetensors), ("x.ckpt", as_checkpoint)]
)
def test_the_file_is_used_as_if_it_stood_in_the_checkpoint(
    root: Path, name: str, write: Callable[[Path, Mapping[str, Tensor]], None]
) -> None:
    vae = other_vae()
    write(root / "vae" / name, vae)
    write_checkpoint(
        root / "models" / "whole.safetensors", tiny_tensors() | {PREFIX + key: tensor for key, tensor in vae.items()}
    )
    engine = engine_of(root)
    expected = make(engine, root, "whole")
    result = make(engine, root, sd_vae=name)
    assert pixels(result) == pixels(expected)
    assert result.info.vae_name == name and expected.info.vae_name is None
    assert "VAE" not in expected.images[0].infotext


def test_a_change_takes_effect_and_can_be_taken_back(root: Path) -> None:
    as_pickle(root / "vae" / "x.pt", other_vae())
    engine = engine_of(root)
    inside = make(engine, root)
    model = engine.model("tiny")
    other = make(engine, root, sd_vae="x.pt")
    assert pixels(other) != pixels(inside)
    assert pixels(make(engine, root, sd_vae="None")) == pixels(inside)
    assert engine.model("tiny") is not model
    assert engine.model("tiny") is engine.model("tiny")


def test_the_image_says_it_and_can_be_made_again(root: Path) -> None:
    as_pickle(root / "vae" / "x.pt", other_vae())
    engine = engine_of(root)
    first = make(engine, root, sd_vae="x.pt")
    parsed = parse_infotext(first.images[0].infotext)
    assert parsed["VAE"] == "x.pt"
    assert parsed["VAE hash"] == first.info.vae_hash
    restored = override_settings_from(parsed, Settings())
    assert restored["sd_vae"] == "x.pt"
    assert pixels(make(engine, root, sd_vae=restored["sd_vae"])) == pixels(first)
    silent = make(engine, root, sd_vae="x.pt", add_vae_name_to_info=False, add_vae_hash_to_info=False)
    assert "VAE" not in silent.images[0].infotext


def test_a_file_beside_the_checkpoint_makes_a_checkpoint_without_vae_whole(root: Path) -> None:
    without = {name: tensor for name, tensor in tiny_tensors().items() if not name.startswith(PREFIX)}
    write_checkpoint(root / "models" / "unet.safetensors", without)
    engine = engine_of(root)
    with pytest.raises(CheckpointError, match="no vae found"):
        make(engine, root, "unet")
    as_pickle(root / "models" / "unet.vae.pt", other_vae())
    engine.vaes.refresh()
    assert make(engine, root, "unet").info.vae_name == "unet.vae.pt"


def test_a_file_that_does_not_fit_is_named(root: Path) -> None:
    as_pickle(root / "vae" / "x.pt", {"encoder.conv_in.weight": torch.zeros(2, 3, 3, 3)})
    engine = engine_of(root)
    with pytest.raises(CheckpointError, match=r"x\.pt: .*are missing"):
        make(engine, root, sd_vae="x.pt")
    assert make(engine, root).info.vae_name is None
