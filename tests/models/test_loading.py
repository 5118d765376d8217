import gc
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file

from modules.errors import CheckpointError
from modules.models.families.family import ModelFamily
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.loading.load_model import load_model
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.precision import PrecisionPlan
from tests.models.family_files import kl
from tests.models.files import tiny_tensors, write_checkpoint
from tests.recordings import CONFIGS, TINY

UNET = "model.diffusion_model.input_blocks.0.0.weight"


def plan_for(dtype: torch.dtype) -> Callable[[ModelFamily], PrecisionPlan]:
    return lambda _: PrecisionPlan(device=torch.device("cpu"), compute_dtype=dtype, vae_dtype=dtype)


def load(path: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    catalogue = CheckpointCatalogue([path.parent], HashCache(path.parent / "hashes.json"))
    return load_model(catalogue.get(path.name), CONFIGS, plan_for(dtype))


def test_the_unet_equals_what_diffusers_loads(tmp_path: Path) -> None:
    ours = load(write_checkpoint(tmp_path / "tiny.safetensors", tiny_tensors()))
    theirs = UNet2DConditionModel.from_single_file(
        load_file(TINY), original_config=str(TINY.with_suffix(".yaml")), local_files_only=True
    )
    expected = theirs.state_dict()
    actual = ours.unet.state_dict()
    assert expected.keys() == actual.keys()
    assert all(torch.equal(actual[key], expected[key].float()) for key in expected)


def test_weights_are_placed_in_the_dtype_asked_for(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path / "tiny.safetensors", tiny_tensors()), torch.bfloat16)
    assert {p.dtype for module in model.modules for p in module.parameters()} == {torch.bfloat16}
    assert model.stored_bytes == 2 * model.parameters
    assert not any(tensor.is_meta for module in model.modules for tensor in module.buffers())


def test_sizes_of_the_text_model_follow_from_its_tensors(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path / "tiny.safetensors", tiny_tensors()))  # no folder with a config.json here
    config = model.text_encoder.config
    assert (config.hidden_size, config.num_attention_heads, config.num_hidden_layers) == (128, 2, 3)


def test_a_local_folder_named_by_the_yaml_decides_the_text_model(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "tiny-clip-text"
    folder.mkdir(parents=True)
    config = json.loads((TINY.parent / "tiny-clip-text" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": 4}))
    (tmp_path / "m").mkdir()
    model = load(write_checkpoint(tmp_path / "m" / "tiny.safetensors", tiny_tensors()))
    assert model.text_encoder.config.num_attention_heads == 4


def test_text_keys_of_the_oldest_files_are_understood(tmp_path: Path) -> None:
    tensors = {name.replace("transformer.text_model.", "transformer."): t for name, t in tiny_tensors().items()}
    model = load(write_checkpoint(tmp_path / "old.safetensors", tensors))
    assert model.text_encoder.config.num_hidden_layers == 3


def test_a_unet_only_file_is_refused_with_advice(tmp_path: Path) -> None:
    tensors = {name: t for name, t in tiny_tensors().items() if name.startswith("model.diffusion_model")}
    with pytest.raises(CheckpointError, match=r"half\.safetensors: no text encoder found .*choose a full checkpoint"):
        load(write_checkpoint(tmp_path / "half.safetensors", tensors))


def test_a_file_without_vae_is_refused_with_advice(tmp_path: Path) -> None:
    tensors = {name: t for name, t in tiny_tensors().items() if not name.startswith("first_stage_model")}
    with pytest.raises(CheckpointError, match=r"no vae found .*pruned file without a VAE"):
        load(write_checkpoint(tmp_path / "novae.safetensors", tensors))


def test_missing_surplus_and_misshapen_tensors_are_listed_in_one_error(tmp_path: Path) -> None:
    tensors = tiny_tensors()
    missing = "model.diffusion_model.out.2.bias"
    del tensors[missing]
    tensors["model.diffusion_model.strange.weight"] = torch.zeros(2)
    tensors[UNET] = torch.zeros(32, 9, 3, 3)
    with pytest.raises(CheckpointError) as caught:
        load(write_checkpoint(tmp_path / "bad.safetensors", tensors))
    text = str(caught.value)
    assert f"1 tensors are missing: {missing}" in text
    assert "belong to no part of the model: model.diffusion_model.strange.weight" in text
    assert f"{UNET} is [32, 9, 3, 3], the configuration says [32, 4, 3, 3]" in text


def test_leftovers_of_training_are_ignored(tmp_path: Path) -> None:
    extra = {"model_ema.decay": torch.zeros(1), "first_stage_model.loss.logvar": torch.zeros(1), "betas": torch.ones(3)}
    plain = load(write_checkpoint(tmp_path / "plain.safetensors", tiny_tensors()))
    found = load(write_checkpoint(tmp_path / "ema.safetensors", {**tiny_tensors(), **extra}))
    assert found.architecture == plain.architecture
    for expected, component in zip(plain.components, found.components, strict=True):
        wanted, state = expected.module.state_dict(), component.module.state_dict()
        assert state.keys() == wanted.keys()
        assert all(torch.equal(tensor, wanted[key]) for key, tensor in state.items()), component.name


def test_a_yaml_with_a_wrong_width_is_an_error_that_names_tensors(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "wide.safetensors", tiny_tensors())
    yaml = path.with_suffix(".yaml")
    yaml.write_text(yaml.read_text().replace("model_channels: 32", "model_channels: 64"))
    with pytest.raises(CheckpointError, match=r"tensors have the wrong shape or type: model\.diffusion_model"):
        load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: [", "not a readable YAML"),
        ("model: {params: {}}", "the entry 'unet_config' is missing"),
        ("just text", "the entry 'model' is missing"),
    ],
)
def test_an_unusable_yaml_is_an_error_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    path = write_checkpoint(tmp_path / "y.safetensors", tiny_tensors())
    path.with_suffix(".yaml").write_text(text)
    with pytest.raises(CheckpointError, match=rf"y\.yaml: .*({message})"):
        load(path)


def test_an_unknown_family_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"of no known model family: .*Known: SD 1\.x"):
        load(write_checkpoint(tmp_path / "other.safetensors", {"transformer.x": torch.zeros(1)}))


def test_a_dropped_model_leaves_no_tensors_behind(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "tiny.safetensors", tiny_tensors())

    def count() -> int:
        gc.collect()
        return sum(isinstance(thing, torch.nn.Parameter) for thing in gc.get_objects())

    before = count()
    model = load(path)
    assert count() > before
    del model
    assert count() == before


def test_a_yaml_given_for_all_files_is_used_where_none_lies_beside(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "tiny.safetensors", tiny_tensors())
    general = tmp_path / "general.yaml"
    path.with_suffix(".yaml").rename(general)
    catalogue = CheckpointCatalogue([tmp_path], HashCache(tmp_path / "hashes.json"))
    general.write_text(general.read_text().replace("scale_factor: 0.18215", "scale_factor: 0.5"))
    model = load_model(catalogue.get("tiny"), CONFIGS, plan_for(torch.float32), default_yaml=general)
    assert (model.architecture.unet_sizes.widths, kl(model.architecture).scale_factor) == ((32, 64, 128, 128), 0.5)


def test_without_any_yaml_sizes_follow_from_the_tensors(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "tiny.safetensors", tiny_tensors())
    described = load(path).architecture
    path.with_suffix(".yaml").unlink()
    found = load(path).architecture
    assert (found.unet, kl(found).sizes) == (described.unet, kl(described).sizes)
