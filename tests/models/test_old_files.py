"""Files as training programs and early converters left them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.loading.load_model import load_model
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.precision import PrecisionPlan
from modules.models.names.ema_names import restored_names, with_dots
from modules.models.opening.checkpoint import open_checkpoint
from tests.models.family_files import family_tensors
from tests.models.original_keys import FULL, file_shapes
from tests.recordings import CONFIGS

UNET = "model.diffusion_model."


def mean_name(name: str) -> str:
    """What the original programs call the running mean of a weight."""
    return f"model_ema.{name.removeprefix('model.').replace('.', '')}"


def loaded(path: Path) -> LoadedModel:
    catalogue = CheckpointCatalogue([path.parent], HashCache(path.parent / "hashes.json"))
    plan = PrecisionPlan(device=torch.device("cpu"), compute_dtype=torch.float32, vae_dtype=torch.float32)
    return load_model(catalogue.get(path.name), CONFIGS, lambda family: plan)


def same_weights(model: LoadedModel, other: LoadedModel) -> bool:
    return all(
        torch.equal(value, second.state_dict()[key])
        for first, second in zip(model.modules, other.modules, strict=True)
        for key, value in first.state_dict().items()
    )


def save(path: Path, tensors: dict[str, Tensor]) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


@pytest.mark.parametrize("family", FULL)
def test_every_name_gets_its_dots_back(family: str) -> None:
    names = [name for name in file_shapes(FULL[family]) if name.startswith(UNET)]
    assert [with_dots(name.removeprefix(UNET).replace(".", "")) for name in names] == [
        name.removeprefix(UNET) for name in names
    ]


def test_what_is_no_name_of_a_unet_stays() -> None:
    assert with_dots("decay") is None
    assert not restored_names(["model_ema.decay", "model_ema.num_updates"])


@pytest.mark.parametrize("name", ["sd1", "sd2", "sdxl"])
def test_a_file_with_the_mean_alone_is_that_model(tmp_path: Path, name: str) -> None:
    tensors = family_tensors(name)
    mean = {(mean_name(key) if key.startswith(UNET) else key): value for key, value in tensors.items()}
    mean |= {"model_ema.decay": torch.tensor(0.9999), "model_ema.num_updates": torch.tensor(7)}
    with open_checkpoint(save(tmp_path / "mean.safetensors", mean)) as file:
        assert file.has_offsets
        assert all(torch.equal(file.read(key), value) for key, value in tensors.items() if key.startswith(UNET))
    if name == "sd1":
        assert same_weights(
            loaded(tmp_path / "mean.safetensors"), loaded(save(tmp_path / "plain.safetensors", tensors))
        )


def test_of_a_file_with_both_the_plain_weights_are_used(tmp_path: Path) -> None:
    tensors = family_tensors("sd1")
    means = {mean_name(key): torch.zeros_like(value) for key, value in tensors.items() if key.startswith(UNET)}
    both = loaded(save(tmp_path / "both.safetensors", {**means, **tensors}))
    assert same_weights(both, loaded(save(tmp_path / "plain.safetensors", tensors)))


def test_text_models_of_the_oldest_files_have_a_level_less(tmp_path: Path) -> None:
    tensors = family_tensors("sd1")
    prefix = "cond_stage_model.transformer."
    old = {key.replace(f"{prefix}text_model.", prefix): value for key, value in tensors.items()}
    assert old.keys() != tensors.keys()
    assert same_weights(
        loaded(save(tmp_path / "old.safetensors", old)), loaded(save(tmp_path / "new.safetensors", tensors))
    )


def test_the_parts_of_a_file_may_be_in_different_precisions(tmp_path: Path) -> None:
    tensors = family_tensors("sd1")
    mixed = {key: value if key.startswith(UNET) else value.float() for key, value in tensors.items()}
    mixed |= {key: value.bfloat16() for key, value in tensors.items() if key.startswith("cond_stage_model.")}
    plain = {**tensors, **{k: v.bfloat16().half() for k, v in tensors.items() if k.startswith("cond_stage_model.")}}
    kinds = {value.dtype for key, value in mixed.items() if not key.endswith("position_ids")}
    assert kinds == {torch.float16, torch.float32, torch.bfloat16}
    model, other = loaded(save(tmp_path / "mixed.safetensors", mixed)), loaded(save(tmp_path / "p.safetensors", plain))
    assert {parameter.dtype for module in model.modules for parameter in module.parameters()} == {torch.float32}
    for first, second in zip((model.unet, model.vae), (other.unet, other.vae), strict=True):
        state = second.state_dict()
        assert all(torch.equal(value, state[key]) for key, value in first.state_dict().items())
    text = other.text_encoder.state_dict()
    assert all(torch.allclose(v, text[k], atol=1e-3) for k, v in model.text_encoder.state_dict().items())
