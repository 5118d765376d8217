"""SD3 files: fused tensors, 8 bits, encoders in files of their own, conversion and back."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from modules.errors import CheckpointError, InvalidValueError
from modules.models.families.denoiser_context import DenoiserContext
from modules.models.files.catalogue import CheckpointInfo
from modules.models.loading.load_model import load_model
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.precision import PrecisionPlan
from modules.models.names.fused import LayoutWriter
from modules.models.opening.checkpoint import open_checkpoint
from tests.models.family_files import family_tensors, write_family
from tests.recordings import CONFIGS

ENCODERS = ("clip_l", "clip_g")


def load(path: Path) -> LoadedModel:
    info = CheckpointInfo(path, path.name, path.stat().st_size, path.stat().st_mtime_ns)
    plan = PrecisionPlan(device=torch.device("cpu"), compute_dtype=torch.float32, vae_dtype=torch.float32)
    return load_model(info, CONFIGS, lambda family: plan)


def split(folder: Path) -> Path:
    """A checkpoint without encoders, and those in `models/text_encoder`."""
    tensors = family_tensors("sd3")
    (folder / "Stable-diffusion").mkdir()
    (folder / "text_encoder").mkdir()
    for name in ENCODERS:
        prefix = f"text_encoders.{name}.transformer."
        own = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
        save_file(own, folder / "text_encoder" / f"{name}.safetensors")
    path = folder / "Stable-diffusion" / "bare.safetensors"
    save_file({key: tensor for key, tensor in tensors.items() if not key.startswith("text_encoders.")}, path)
    return path


def predicted(model: LoadedModel) -> Tensor:
    torch.manual_seed(1)
    x, context = torch.randn(1, 16, 8, 8), DenoiserContext(torch.randn(1, 154, 256), torch.randn(1, 192))
    with torch.inference_mode():
        return model.predict(x, torch.tensor([500.0]), context)


def test_encoders_beside_the_checkpoint_are_found(tmp_path: Path) -> None:
    whole, parts = load(write_family(tmp_path, "sd3")), load(split(tmp_path))
    assert parts.text_widths == whole.text_widths == [64, 128]
    for name in ("text_encoder", "text_encoder_2"):
        for key, tensor in whole.text_encoders[name].state_dict().items():
            assert torch.equal(tensor, parts.text_encoders[name].state_dict()[key])


@pytest.mark.parametrize("name", ENCODERS)
def test_a_missing_encoder_is_named_with_its_place(name: str, tmp_path: Path) -> None:
    path = split(tmp_path)
    (tmp_path / "text_encoder" / f"{name}.safetensors").unlink()
    with pytest.raises(CheckpointError, match=rf"{name}\.safetensors, \d+ wide.*models/text_encoder"):
        load(path)


def test_a_transformer_with_a_hole_is_refused(tmp_path: Path) -> None:
    tensors = family_tensors("sd3")
    save_file({k: t for k, t in tensors.items() if "context_embedder" not in k}, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match="not whole"):
        load(tmp_path / "a.safetensors")


def test_what_the_layout_reads_the_writer_writes_back(tmp_path: Path) -> None:
    path = write_family(tmp_path, "sd3.5")
    with open_checkpoint(path) as file:
        declared = {name: (entry.dtype, entry.shape) for name, entry in file.entries.items()}
        assert "model.diffusion_model.final_layer.adaLN_modulation.1.rows_128_256_0_128.weight" in declared
        with LayoutWriter(tmp_path / "again.safetensors", declared, 1 << 16) as writer:
            for name in declared:
                writer.write(name, file.read(name))
    before, after = load_file(path), load_file(tmp_path / "again.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_files_in_8_bits_keep_their_weights(tmp_path: Path) -> None:
    """Plain ones, and with one scale a tensor or a row, fused and swapped layers too."""
    tensors: dict[str, Tensor] = {}
    widened: dict[str, Tensor] = {}
    for index, (key, tensor) in enumerate(family_tensors("sd3").items()):
        is_linear = key.startswith("model.diffusion_model.joint") or ".final_layer." in key
        if not is_linear or not key.endswith(".weight") or tensor.ndim != 2:
            tensors[key] = widened[key] = tensor
            continue
        shape = (1,) if index % 2 else (tensor.shape[0], 1)
        scale = torch.rand(shape, generator=torch.Generator().manual_seed(index)) / 256 + 0.002
        stored = (tensor.float() / scale).to(torch.float8_e4m3fn)
        tensors[key] = stored
        tensors[f"{key.removesuffix('.weight')}.scale_weight"] = scale.flatten()
        widened[key] = stored.float() * scale
    save_file(tensors, tmp_path / "narrow.safetensors")
    save_file({key: tensor.float() for key, tensor in widened.items()}, tmp_path / "wide.safetensors")
    torch.testing.assert_close(
        predicted(load(tmp_path / "narrow.safetensors")),
        predicted(load(tmp_path / "wide.safetensors")),
        atol=1e-4,
        rtol=1e-4,
    )


def test_an_image_beyond_the_table_of_positions_is_refused(tmp_path: Path) -> None:
    model = load(write_family(tmp_path, "sd3"))
    with pytest.raises(InvalidValueError, match="at most 16 latents"):
        model.predict(
            torch.zeros(1, 16, 18, 8),
            torch.tensor([1.0]),
            DenoiserContext(torch.zeros(1, 154, 256), torch.zeros(1, 192)),
        )
