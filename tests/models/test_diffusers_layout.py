"""Models in the diffusers layout are the same models as in the original one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.errors import CheckpointError
from modules.models.autoencoders.source import open_vae
from modules.models.families.registry import detect_family
from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo, HashCache
from modules.models.loading.load_model import architecture_of
from modules.models.opening.checkpoint import open_checkpoint
from tests.models.diffusers_folders import UNETS, text_tensors, unet_tensors, vae_tensors, write_folder
from tests.models.family_files import kl, write_family
from tests.recordings import CONFIGS


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("folders")
    for name in UNETS:
        write_folder(parent, name)
    return parent


def info_of(path: Path) -> CheckpointInfo:
    catalogue = CheckpointCatalogue([path.parent], HashCache(path.parent / "hashes.json"))
    return catalogue.get(path.name)


def change(folder: Path, name: str, **settings: Any) -> None:
    file = folder / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


@pytest.mark.parametrize("name", UNETS)
def test_every_tensor_appears_as_in_the_original_file(folders: Path, tmp_path: Path, name: str) -> None:
    with open_checkpoint(write_family(tmp_path, name)) as original, open_checkpoint(folders / name) as folder:
        left_out = {key for key in original.entries if key not in folder.entries}
        assert all(key.endswith(("position_ids", "logit_scale", "text_projection.weight")) for key in left_out)
        assert not {key for key in folder.entries if key not in original.entries}
        cut = ".resblocks.2." if name == "sd2" else "no layer"
        for key in folder.entries:
            if key in ("v_pred", "ztsnr"):
                continue
            if cut in key:
                assert not folder.read(key).any()
            else:
                assert torch.equal(folder.read(key), original.read(key)), key
                into = torch.empty(folder.entries[key].shape, dtype=folder.entries[key].dtype)
                assert torch.equal(folder.read(key, into), original.read(key)), key


@pytest.mark.parametrize("name", UNETS)
def test_family_and_architecture_are_those_of_the_original_file(folders: Path, tmp_path: Path, name: str) -> None:
    path = write_family(tmp_path, name)
    with open_checkpoint(path) as original, open_checkpoint(folders / name) as folder:
        family = detect_family(folder)
        assert family is detect_family(original)
        known = architecture_of(original, info_of(path), family, CONFIGS)
        found = architecture_of(folder, info_of(folders / name), family, CONFIGS)
        assert found.autoencoder == known.autoencoder
        assert found.noise_schedule == known.noise_schedule
        assert found.latent_side == 16  # `sample_size` of the folder
        assert found.prediction_type == ("v_prediction" if name == "sdxl-v" else "epsilon")
        for level in range(known.unet_sizes.levels):
            assert found.unet_sizes.heads_at(level) == known.unet_sizes.heads_at(level)


@pytest.mark.parametrize("variant", [None, "fp16"])
def test_weights_in_several_files_are_found_by_their_index(folders: Path, tmp_path: Path, variant: str | None) -> None:
    folder = write_folder(tmp_path, "sd1", shards="200KB", variant=variant)
    assert len(list((folder / "unet").glob("*.safetensors"))) > 2
    with open_checkpoint(folders / "sd1") as one, open_checkpoint(folder) as many:
        assert many.entries.keys() == one.entries.keys()
        assert all(torch.equal(one.read(key), many.read(key)) for key in one.entries)
        assert many.has_offsets and len({entry.file for entry in many.entries.values()}) > 4


def test_a_missing_file_of_several_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "sd1", shards="200KB")
    gone = sorted((folder / "unet").glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(CheckpointError, match=f"index.json: the files {gone.name} are missing"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["../../vae/diffusion_pytorch_model.safetensors", "config.json", 7])
def test_an_index_may_only_name_weights_beside_it(tmp_path: Path, name: Any) -> None:
    folder = write_folder(tmp_path, "sd1", shards="200KB")
    index = next((folder / "unet").glob("*.index.json"))
    index.write_text(json.dumps({"weight_map": {"conv_in.weight": name}}))
    with pytest.raises(CheckpointError, match="is not an index of weights"):
        open_checkpoint(folder)


def test_weights_of_torchs_own_form_are_read_where_there_are_no_others(folders: Path, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    shutil.copytree(folders / "sd1", folder)
    file = folder / "text_encoder" / "model.safetensors"
    torch.save(load_file(file), folder / "text_encoder" / "pytorch_model.bin")
    file.unlink()
    with open_checkpoint(folders / "sd1") as new, open_checkpoint(folder) as old:
        assert old.has_offsets and any(
            entry.file == folder / "text_encoder" / "pytorch_model.bin" for entry in old.entries.values()
        )
        assert all(torch.equal(new.read(key), old.read(key)) for key in new.entries)


def test_old_names_of_the_autoencoders_attention_are_known(folders: Path, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    shutil.copytree(folders / "sd1", folder)
    file = folder / "vae" / "diffusion_pytorch_model.safetensors"
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    tensors = load_file(file)
    for new_name, old_name in old.items():
        tensors = {key.replace(f".0.{new_name}.", f".0.{old_name}."): value for key, value in tensors.items()}
    assert any(".proj_attn." in key for key in tensors)
    save_file(tensors, file)
    with open_checkpoint(folders / "sd1") as new, open_checkpoint(folder) as before:
        assert new.entries.keys() == before.entries.keys()


def test_a_vae_file_in_this_layout(folders: Path, tmp_path: Path) -> None:
    with (
        open_vae(folders / "sd1" / "vae" / "diffusion_pytorch_model.safetensors") as found,
        open_vae(write_family(tmp_path, "sd1")) as original,
    ):
        assert found.entries.keys() == original.entries.keys()
        assert {key: entry.shape for key, entry in found.entries.items()} == {
            key: entry.shape for key, entry in original.entries.items()
        }
        assert all(torch.equal(found.read(key), original.read(key)) for key in original.entries)


def test_names_without_the_level_text_model_are_known(folders: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    shutil.copytree(folders / "sdxl", folder)
    for part in ("text_encoder", "text_encoder_2"):
        file = folder / part / "model.safetensors"
        save_file({key.removeprefix("text_model."): value for key, value in load_file(file).items()}, file)
    with open_checkpoint(folders / "sdxl") as old, open_checkpoint(folder) as new:
        assert {key for key in old.entries if "position_ids" not in key} <= new.entries.keys()


@pytest.mark.parametrize("name", ["sd1", "sd2", "sdxl", "sdxl-refiner"])
def test_a_single_file_with_the_names_of_the_folders(folders: Path, tmp_path: Path, name: str) -> None:
    parts = {"unet": unet_tensors(name), "vae": vae_tensors(name), **text_tensors(name)}
    path = tmp_path / "one.safetensors"
    save_file({f"{part}.{key}": value.contiguous() for part, tensors in parts.items() for key, value in tensors.items()}, path)  # fmt: skip # noqa: E501
    with open_checkpoint(folders / name) as folder, open_checkpoint(path) as file:
        assert file.entries.keys() == folder.entries.keys()
        assert all(torch.equal(file.read(key), folder.read(key)) for key in file.entries)


@pytest.mark.parametrize(
    ("file", "settings", "complaint"),
    [
        ("unet/config.json", {"in_channels": 9}, "in_channels is 9; but the tensors say 4"),
        ("unet/config.json", {"block_out_channels": [32, 32]}, r"block_out_channels is \[32, 32\]; but the tensors"),
        ("unet/config.json", {"cross_attention_dim": 768}, "cross_attention_dim is 768; but the tensors say 64"),
        ("unet/config.json", {"attention_head_dim": [3, 5]}, "attention_head_dim"),
        ("vae/config.json", {"latent_channels": 16}, "latent_channels is 16; but the tensors say 4"),
        ("vae/config.json", {"latents_mean": [0.5]}, "latents that are shifted"),
        ("vae/config.json", {"scaling_factor": "x"}, "scaling_factor is 'x'; it must be a number"),
        ("text_encoder/config.json", {"hidden_size": 768}, "hidden_size is 768; but the tensors say 64"),
        ("text_encoder/config.json", {"num_hidden_layers": 12}, "num_hidden_layers is 12; but the tensors say 3"),
        ("text_encoder/config.json", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("text_encoder/config.json", {"num_attention_heads": 4}, "num_attention_heads is 4"),
        ("scheduler/scheduler_config.json", {"prediction_type": "sample"}, "prediction_type is 'sample'"),
        ("scheduler/scheduler_config.json", {"beta_schedule": "linear"}, "beta_schedule is 'linear'"),
        ("scheduler/scheduler_config.json", {"beta_start": "x"}, "unusable value"),
    ],
)
def test_a_wrong_setting_is_named(
    folders: Path, tmp_path: Path, file: str, settings: dict[str, Any], complaint: str
) -> None:
    folder = tmp_path / "wrong"
    shutil.copytree(folders / "sd1", folder)
    change(folder, file, **settings)
    with pytest.raises(CheckpointError, match=rf"wrong/{file}: .*{complaint}"), open_checkpoint(folder) as opened:
        architecture_of(opened, info_of(folder), detect_family(opened), CONFIGS)


def test_settings_that_are_no_table_are_refused(folders: Path, tmp_path: Path) -> None:
    for number, text in enumerate(("{broken", "[]")):
        folder = tmp_path / str(number)
        shutil.copytree(folders / "sd1", folder)
        (folder / "text_encoder" / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"text_encoder/config\.json"):
            open_checkpoint(folder)


def test_heads_latent_scale_and_noise_come_from_the_settings(folders: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(folders / "sd1", folder)
    change(folder, "unet/config.json", attention_head_dim=4, sample_size=96)
    change(folder, "vae/config.json", scaling_factor=0.5)
    change(folder, "scheduler/scheduler_config.json", beta_end=0.02)
    with open_checkpoint(folder) as opened:
        found = architecture_of(opened, info_of(folder), detect_family(opened), CONFIGS)
    assert (found.unet_sizes.heads, kl(found).scale_factor, found.noise_schedule.linear_end) == (4, 0.5, 0.02)
    assert found.latent_side == 96


def test_a_folder_without_settings_goes_by_its_tensors(folders: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(folders / "sd1", folder)
    for file in folder.rglob("*config.json"):
        file.unlink()
    with open_checkpoint(folder) as opened:
        found = architecture_of(opened, info_of(folder), detect_family(opened), CONFIGS)
    assert found.unet_sizes.widths == (32, 64) and found.unet_sizes.heads == 8


def test_a_folder_of_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other" / "prior").mkdir(parents=True)
    (tmp_path / "other" / "model_index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has no folder unet or transformer"):
        open_checkpoint(tmp_path / "other")


def test_a_folder_in_codes_of_sdnq_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "m" / "unet").mkdir(parents=True)
    (tmp_path / "m" / "model_index.json").write_text("{}")
    (tmp_path / "m" / "unet" / "quantization_config.json").write_text('{"quant_method": "sdnq"}')
    with pytest.raises(CheckpointError, match=r"m: is quantized by SDNQ.*a copy in 16 bits, fp8 or GGUF"):
        open_checkpoint(tmp_path / "m")


def test_an_adapter_without_weights_says_what_was_looked_for(folders: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    shutil.copytree(folders / "sd1", folder)
    file = folder / "vae" / "diffusion_pytorch_model.safetensors"
    file.rename(file.with_name("mine.safetensors"))
    open_checkpoint(folder).close()
    shutil.copy(file.with_name("mine.safetensors"), file.with_name("other.safetensors"))
    with pytest.raises(CheckpointError, match=r"empty/vae: .*several of unknown kinds: mine"):
        open_checkpoint(folder)
    for left in (folder / "vae").glob("*.safetensors"):
        left.unlink()
    with pytest.raises(CheckpointError, match="found none"):
        open_checkpoint(folder)
