"""Files as other programs and downloads leave them: read, or refused with what they are."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.models.names.view import open_whole
from modules.models.opening.checkpoint import open_checkpoint
from tests.models.dit_models import TINY
from tests.models.gguf_files import quantization
from tests.models.split_models import SPLIT_FAMILIES, save, split_model
from tests.processing.test_z_image import engine_of, made, pixels

Tensors = dict[str, Tensor]
LEVELS = ("model.diffusion_model.", "diffusion_model.", "net.", "model.", "module.", "_orig_mod.", "dit.")
Image = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def behind(level: str, tensors: Mapping[str, Tensor]) -> Tensors:
    return {f"{level}{key}": tensor for key, tensor in tensors.items()}


@pytest.mark.parametrize("family", SPLIT_FAMILIES)
def test_a_denoiser_is_known_behind_every_level(family: str, tmp_path: Path) -> None:
    model = split_model(family)
    wanted = model.write(tmp_path)
    with open_checkpoint(wanted) as plain:
        for level in LEVELS:
            path = save(tmp_path / "Stable-diffusion" / "other.safetensors", behind(level, model.denoiser))
            with open_checkpoint(path) as file:
                assert file.entries.keys() == plain.entries.keys(), level


@pytest.mark.parametrize("name", ["dev", "klein", "chroma"])
def test_names_of_diffusers_are_known_behind_every_level(name: str, tmp_path: Path) -> None:
    state = {key: tensor.contiguous() for key, tensor in TINY[name].transformer().state_dict().items()}
    with open_checkpoint(save(tmp_path / "plain.safetensors", state)) as plain:
        assert any(key.startswith("model.diffusion_model.") for key in plain.entries)
        for level in LEVELS:
            with open_checkpoint(save(tmp_path / "other.safetensors", behind(level, state))) as file:
                assert file.entries.keys() == plain.entries.keys(), level


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Image:
    root = tmp_path_factory.mktemp("plain")
    split_model("z_image").write(root)
    return pixels(made(engine_of(root), root, steps=1))


@pytest.mark.parametrize("vae_level", ["vae.", "first_stage_model."])
def test_parts_with_the_names_of_a_whole_checkpoint_are_found(plain: Image, vae_level: str, tmp_path: Path) -> None:
    model = split_model("z_image")
    save(tmp_path / "Stable-diffusion" / "model.safetensors", model.denoiser)
    prefix, text = model.texts["qwen3_4b_tiny"]
    save(tmp_path / "text_encoder" / "taken_out.safetensors", behind(prefix, text))
    save(tmp_path / "VAE" / "taken_out.safetensors", behind(vae_level, model.vae))
    assert np.array_equal(pixels(made(engine_of(tmp_path), tmp_path, steps=1)), plain)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<!DOCTYPE html><html>Access to model is restricted</html>", "is no model, but a web page"),
        (b"\n <HTML><body>", "accept a licence there first"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12", "the pointer that git keeps"),
    ],
)
@pytest.mark.parametrize("suffix", [".safetensors", ".gguf", ".ckpt"])
def test_what_a_download_left_is_named(content: bytes, said: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=said):
        open_whole(path)


def gptq(layer: str, weight: Tensor) -> Tensors:
    out, width = weight.shape
    codes = {"qweight": (width // 8, out), "qzeros": (1, out // 8)}
    return {f"{layer}.{name}": torch.zeros(shape, dtype=torch.int32) for name, shape in codes.items()}


def stateless(layer: str, weight: Tensor) -> Tensors:
    data, scales = torch.zeros(weight.numel() // 2, 1, dtype=torch.uint8), torch.zeros(weight.numel() // 64)
    return {f"{layer}.weight": data, f"{layer}.weight.absmax": scales}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (gptq, "in the codes of GPTQ or AWQ, which are not read here. Use a copy in 16 bits, fp8, or GGUF"),
        (stateless, "in the codes of bitsandbytes, and nothing in the file says of which shape it is"),
    ],
)
def test_codes_that_cannot_be_read_are_named(code: Callable[[str, Tensor], Tensors], said: str, tmp_path: Path) -> None:
    tensors: Tensors = {}
    for key, tensor in split_model("qwen_image").denoiser.items():
        coded = quantization(key, tensor)
        tensors |= code(key.removesuffix(".weight"), tensor) if coded else {key: tensor}
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(save(tmp_path / "model.safetensors", tensors))


def test_a_damaged_encoder_that_would_be_found_is_named(tmp_path: Path) -> None:
    path = split_model("chroma1").write(tmp_path)
    damaged = tmp_path / "text_encoder" / "t5xxl_tiny.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=r"t5xxl_tiny\.safetensors: .*truncated or damaged"):
        open_checkpoint(path)
