"""Tiny autoencoders: which files are read, and that they compute what diffusers' own class does."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderTiny
from safetensors.torch import save_file
from torch import Tensor

from modules.errors import CheckpointError, NumericalError
from modules.models.autoencoders.running import VaeRules, VaeRunner
from modules.models.autoencoders.tiny_vae import PooledBlock, TinyHalf, original_names, read_tiny
from modules.models.autoencoders.tiny_vae_files import DECODER, ENCODER, TinyVaeFolders
from modules.models.files.catalogue import CheckpointInfo

CPU = torch.device("cpu")
CHECKPOINT = CheckpointInfo(Path("models/nice.safetensors"), "nice.safetensors", 1, 1)
DECODER_CONVOLUTIONS = {1, 7, 12, 17, 19}  # of taesd_decoder, by layer; the others are blocks, or have no tensors
DECODER_BLOCKS = {3, 4, 5, 8, 9, 10, 13, 14, 15, 18}
ENCODER_CONVOLUTIONS = {0, 2, 6, 10, 14}
ENCODER_BLOCKS = {1, 3, 4, 5, 7, 8, 9, 11, 12, 13}


@cache
def diffusers_vae(width: int = 8) -> Any:
    """A narrow one with random weights, of the standard depth."""
    torch.manual_seed(0)
    widths = (width,) * 4
    vae = AutoencoderTiny(encoder_block_out_channels=widths, decoder_block_out_channels=widths)
    return vae.eval().requires_grad_(False)


def originals(half: str) -> dict[str, Tensor]:
    return original_names(getattr(diffusers_vae(), half), half)


def as_original(folder: Path, half: str) -> Path:
    path = folder / f"taesd_{half}.safetensors"
    save_file(originals(half), path)
    return path


def as_pickle(folder: Path, half: str) -> Path:
    path = folder / f"taesd_{half}.pth"
    torch.save(originals(half), path)
    return path


def as_one_file(folder: Path, half: str) -> Path:
    path = folder / "taesd.safetensors"
    save_file(diffusers_vae().state_dict(), path)
    return path


def with_prefixes(folder: Path, half: str) -> Path:
    path = folder / "both.safetensors"
    both = {f"taesd_{half}.{name}": tensor for half in (DECODER, ENCODER) for name, tensor in originals(half).items()}
    save_file(both, path)
    return path


def runner(tile_px: int = 0, dtype: torch.dtype = torch.float32) -> VaeRunner:
    return VaeRunner(CPU, dtype, VaeRules(tile_px))


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("write", [as_original, as_pickle, as_one_file, with_prefixes])
def test_both_halves_of_every_form_compute_what_diffusers_does(
    tmp_path: Path, write: Callable[[Path, str], Path]
) -> None:
    latents, images = noise(2, 4, 5, 6), noise(1, 3, 40, 48).clamp(-1, 1)
    decoder, encoder = (read_tiny(write(tmp_path, half), half, 4, 8) for half in (DECODER, ENCODER))
    torch.testing.assert_close(decoder.run(latents, runner()), diffusers_vae().decode(latents).sample)
    torch.testing.assert_close(encoder.run(images, runner()), diffusers_vae().encode(images).latents)


def layers(names: Mapping[str, object], mark: str) -> set[int]:
    return {int(name.split(".")[0]) for name in names if name.split(".", 1)[1] == mark}


def test_original_names_are_those_of_the_published_files() -> None:
    decoder, encoder = originals(DECODER), originals(ENCODER)
    assert layers(decoder, "weight") == DECODER_CONVOLUTIONS and layers(decoder, "bias") == {1, 19}
    assert layers(decoder, "conv.4.bias") == DECODER_BLOCKS
    assert layers(encoder, "weight") == ENCODER_CONVOLUTIONS and layers(encoder, "bias") == {0, 14}
    assert layers(encoder, "conv.4.bias") == ENCODER_BLOCKS


@pytest.mark.parametrize("half", [DECODER, ENCODER])
def test_tiles_make_the_same_image(tmp_path: Path, half: str) -> None:
    tiny = read_tiny(as_original(tmp_path, half), half, 4, 8)
    x = noise(1, 4, 70, 50) if half == DECODER else noise(1, 3, 560, 400)
    torch.testing.assert_close(tiny.run(x, runner(tile_px=128)), tiny.run(x, runner()), rtol=1e-4, atol=1e-5)


def test_images_that_tile_are_made_whole(tmp_path: Path) -> None:
    tiny = read_tiny(as_original(tmp_path, DECODER), DECODER, 4, 8)
    for module in tiny.module.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.padding_mode = "circular"
    x = noise(1, 4, 40, 40)
    assert torch.equal(tiny.run(x, runner(tile_px=64)), tiny.run(x, runner()))


def test_depth_width_and_factor_follow_from_the_tensors(tmp_path: Path) -> None:
    vae = AutoencoderTiny(
        latent_channels=16,
        encoder_block_out_channels=(6, 6, 6),
        decoder_block_out_channels=(6, 6, 6),
        num_encoder_blocks=(1, 2, 1),
        num_decoder_blocks=(2, 1, 1),
    )
    path = tmp_path / "x.safetensors"
    save_file(vae.state_dict(), path)
    decoder, encoder = (read_tiny(path, half, 16, 4) for half in (DECODER, ENCODER))
    assert decoder.sizes.blocks == (2, 1, 1) and encoder.sizes.blocks == (1, 2, 1)
    assert decoder.run(noise(1, 16, 3, 3), runner()).shape == (1, 3, 12, 12)
    assert encoder.run(noise(1, 3, 12, 12), runner()).shape == (1, 16, 3, 3)


def test_a_file_for_other_latents_is_refused(tmp_path: Path) -> None:
    path = as_original(tmp_path, DECODER)
    with pytest.raises(CheckpointError, match="of 4 channels that stand for 8 pixels a side; this model's have 16"):
        read_tiny(path, DECODER, 16, 8)
    with pytest.raises(CheckpointError, match="this model's have 4 and 4"):
        read_tiny(path, DECODER, 4, 4)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("4.conv.2.bias"),
        lambda tensors: tensors.update({"5.conv.0.weight": torch.zeros(3, 3, 3, 3)}),
        lambda tensors: tensors.pop("19.weight"),
        lambda tensors: tensors.update({"5.other": torch.zeros(1)}),
        lambda tensors: tensors.update({"1.weight": torch.zeros(())}),
        lambda tensors: (
            [tensors.pop(name) for name in list(tensors) if "." in name] and tensors.update(a=torch.ones(1))
        ),
    ],
)
def test_what_is_no_tiny_decoder_is_refused(tmp_path: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = originals(DECODER)
    change(tensors)
    save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=r"x\.safetensors: is no tiny decoder of the TAESD kind"):
        read_tiny(tmp_path / "x.safetensors", DECODER, 4, 8)


def test_an_encoder_is_no_decoder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no tiny decoder"):
        read_tiny(as_original(tmp_path, ENCODER), DECODER, 4, 8)


def test_nan_is_an_error(tmp_path: Path) -> None:
    tiny: TinyHalf = read_tiny(as_original(tmp_path, DECODER), DECODER, 4, 8)
    with pytest.raises(NumericalError, match="Choose 'Full' as VAE type for decode"):
        tiny.run(torch.full((1, 4, 2, 2), torch.nan), runner())


def test_it_runs_in_the_dtype_of_the_runner(tmp_path: Path) -> None:
    tiny = read_tiny(as_original(tmp_path, DECODER), DECODER, 4, 8)
    x = noise(1, 4, 4, 4)
    exact = tiny.run(x, runner())
    rounded = tiny.run(x, runner(dtype=torch.bfloat16))
    assert rounded.dtype == torch.float32 and not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.1, atol=0.1)


def test_a_checkpoints_own_file_goes_before_its_familys(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    folders = TinyVaeFolders([first, second])
    assert folders.find(DECODER, CHECKPOINT, "taesdxl") is None
    for path in (second / "taesdxl.pt", second / "taesdxl_decoder.pth", first / "taesdxl_decoder.safetensors"):
        path.touch()
        assert folders.find(DECODER, CHECKPOINT, "taesdxl") == path
    assert folders.find(ENCODER, CHECKPOINT, "taesdxl") == second / "taesdxl.pt"
    own = second / "nice_decoder.safetensors"
    own.touch()
    assert folders.find(DECODER, CHECKPOINT, "taesdxl") == own


def test_a_missing_file_is_named_with_its_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"put taesd3_encoder\.safetensors \(or \.pth\) into .*Or choose 'Full'"):
        TinyVaeFolders([tmp_path]).get(ENCODER, CHECKPOINT, "taesd3")


def pooled(half: str) -> dict[str, Tensor]:
    """A half of TAEF2's form: the blocks next to the latents have a pool of their input."""
    torch.manual_seed(3)
    width = 8
    vae = AutoencoderTiny(
        encoder_block_out_channels=(width,) * 4, decoder_block_out_channels=(width,) * 4, latent_channels=2
    )
    tensors = original_names(getattr(vae, half), half)
    for number in (3, 4, 5) if half == DECODER else (11, 12, 13):
        tensors[f"{number}.pool.0.weight"] = torch.randn(4 * width, width, 1, 1) / 4
        tensors[f"{number}.pool.1.weight"] = torch.rand(4 * width)
        tensors[f"{number}.pool.1.bias"] = torch.rand(4 * width)
        tensors[f"{number}.pool.3.weight"] = torch.randn(width, 4 * width, 1, 1) / 4
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@pytest.mark.parametrize("half", [DECODER, ENCODER])
def test_blocks_with_pools_and_latents_of_patches_are_computed(half: str, tmp_path: Path) -> None:
    tensors = pooled(half)
    save_file(tensors, tmp_path / "taef2.safetensors")
    plain = read_tiny(tmp_path / "taef2.safetensors", half, 2, 8)
    packed = read_tiny(tmp_path / "taef2.safetensors", half, 8, 16)
    x = torch.randn(1, 2, 8, 8) if half == DECODER else torch.rand(1, 3, 64, 64) * 2 - 1
    expected = plain.compute(x, 4)
    if half == DECODER:
        assert torch.equal(packed.compute(torch.nn.functional.pixel_unshuffle(x, 2), 2), expected)
    else:
        assert torch.equal(packed.compute(x, 2), torch.nn.functional.pixel_unshuffle(expected, 2))
    without = {name: tensor for name, tensor in tensors.items() if ".pool." not in name}
    save_file(without, tmp_path / "none.safetensors")
    assert not torch.allclose(read_tiny(tmp_path / "none.safetensors", half, 2, 8).compute(x, 0), expected)


def test_a_block_with_a_pool_adds_it_to_its_input() -> None:
    block = torch.nn.Module()
    block.conv, block.skip, block.fuse = torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.Identity(), torch.nn.ReLU()
    made, x = PooledBlock(block), torch.randn(2, 4, 5, 5)
    first, norm, last = made.pool[0], made.pool[1], made.pool[3]
    assert isinstance(norm, torch.nn.GroupNorm) and norm.num_groups == 4
    inner = x + last(torch.relu(norm(first(x))))
    assert torch.equal(made(x), torch.relu(block.conv(inner) + inner))
