"""SD3 in the diffusers layout is the same model as in the original one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.errors import CheckpointError
from modules.models.families.registry import detect_family
from modules.models.families.sd3.layout import T5_LEVEL
from modules.models.families.sd3.t5 import OWN_TOKENIZER
from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo, HashCache
from modules.models.loading.load_model import architecture_of
from modules.models.opening.checkpoint import open_checkpoint
from modules.models.text_encoders.t5 import t5_tokenizer_file
from tests.models.diffusers_folders import write_json
from tests.models.diffusers_sd3_folders import sd3_parts, write_sd3_folder
from tests.models.family_files import TINY_SD3, kl, write_family
from tests.models.tiny_t5 import PREFIX, t5_tensors, write_tokenizer
from tests.recordings import CONFIGS


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("sd3")
    for name in TINY_SD3:
        write_sd3_folder(parent, name, with_t5=True)
    return parent


def info_of(path: Path) -> CheckpointInfo:
    return CheckpointCatalogue([path.parent], HashCache(path.parent / "hashes.json")).get(path.name)


def changed(folders: Path, tmp_path: Path, file: str, settings: dict[str, Any]) -> Path:
    folder = tmp_path / "changed"
    shutil.copytree(folders / "sd3.5", folder)
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return folder


@pytest.mark.parametrize("name", TINY_SD3)
def test_every_tensor_appears_as_in_the_original_file(folders: Path, tmp_path: Path, name: str) -> None:
    with open_checkpoint(write_family(tmp_path, name)) as original, open_checkpoint(folders / name) as folder:
        surplus = folder.entries.keys() - original.entries.keys()
        assert surplus == {"text_encoders.clip_l.transformer.text_projection.weight"}
        assert not original.entries.keys() - folder.entries.keys()
        for key in original.entries:
            assert torch.equal(folder.read(key), original.read(key)), key
            into = torch.empty(folder.entries[key].shape, dtype=folder.entries[key].dtype)
            assert torch.equal(folder.read(key, into), original.read(key)), key
            assert folder.entries[key].file is not None


@pytest.mark.parametrize("name", TINY_SD3)
def test_family_and_architecture_are_those_of_the_original_file(folders: Path, tmp_path: Path, name: str) -> None:
    path = write_family(tmp_path, name)
    with open_checkpoint(path) as original, open_checkpoint(folders / name) as folder:
        family = detect_family(folder)
        assert family is detect_family(original)
        known = architecture_of(original, info_of(path), family, CONFIGS)
        found = architecture_of(folder, info_of(folders / name), family, CONFIGS)
    assert (found.autoencoder, found.noise_schedule) == (known.autoencoder, known.noise_schedule)
    assert found.prediction_type == known.prediction_type == "flow"
    assert found.latent_side == 16  # `sample_size` of the folder


def test_t5_is_there_only_if_it_is_asked_for(folders: Path, tmp_path: Path) -> None:
    with open_checkpoint(folders / "sd3") as without:
        assert not any(key.startswith(T5_LEVEL) for key in without.entries)
    with open_checkpoint(folders / "sd3", with_optional=True) as opened:
        found = {key.removeprefix(PREFIX): opened.read(key) for key in opened.entries if key.startswith(T5_LEVEL)}
    expected = t5_tensors()
    assert found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in found)


def test_its_own_tokenizer_comes_first(folders: Path, tmp_path: Path) -> None:
    folder = tmp_path / "Stable-diffusion" / "sd3"
    shutil.copytree(folders / "sd3", folder)
    beside = write_tokenizer(tmp_path / "text_encoder" / "t5_tokenizer.json")
    assert t5_tokenizer_file(folder, OWN_TOKENIZER) == folder / "tokenizer_3" / "tokenizer.json"
    shutil.rmtree(folder / "tokenizer_3")
    assert t5_tokenizer_file(folder, OWN_TOKENIZER) == beside


def test_encoders_beside_the_folder_take_the_place_of_missing_ones(folders: Path, tmp_path: Path) -> None:
    folder = tmp_path / "Stable-diffusion" / "sd3"
    shutil.copytree(folders / "sd3", folder)
    (tmp_path / "text_encoder").mkdir()
    for part, file in (("text_encoder", "clip_l"), ("text_encoder_2", "clip_g"), ("text_encoder_3", "t5xxl")):
        shutil.copy(folder / part / "model.safetensors", tmp_path / "text_encoder" / f"{file}.safetensors")
        shutil.rmtree(folder / part)
    with open_checkpoint(folders / "sd3", True) as whole, open_checkpoint(folder, True) as cut:
        assert whole.entries.keys() == cut.entries.keys()
        assert all(torch.equal(whole.read(key), cut.read(key)) for key in whole.entries)


@pytest.mark.parametrize("variant", [None, "fp16"])
def test_weights_in_several_files_are_found_by_their_index(folders: Path, tmp_path: Path, variant: str | None) -> None:
    folder = write_sd3_folder(tmp_path, "sd3", shards="400KB", variant=variant, with_t5=True)
    assert all(len(list((folder / part).glob("*.safetensors"))) > 1 for part in ("transformer", "text_encoder_3"))
    with open_checkpoint(folders / "sd3", True) as one, open_checkpoint(folder, True) as many:
        assert many.entries.keys() == one.entries.keys()
        assert all(torch.equal(one.read(key), many.read(key)) for key in one.entries)
        assert many.has_offsets and len({entry.file for entry in many.entries.values()}) > 6


@pytest.mark.parametrize("name", TINY_SD3)
def test_a_single_file_with_the_names_of_the_folders(folders: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "one.safetensors"
    parts = sd3_parts(name, with_t5=True)
    save_file({f"{part}.{key}": tensor for part, tensors in parts.items() for key, tensor in tensors.items()}, path)
    for with_t5 in (False, True):
        with open_checkpoint(folders / name, with_t5) as folder, open_checkpoint(path, with_t5) as file:
            assert file.entries.keys() == folder.entries.keys()
            assert all(torch.equal(file.read(key), folder.read(key)) for key in file.entries)


def test_a_projection_that_does_something_is_kept(tmp_path: Path) -> None:
    projection = torch.randn(64, 64).half()
    folder = write_sd3_folder(tmp_path, "sd3", projection=projection)
    with open_checkpoint(folder) as file:
        assert torch.equal(file.read("text_encoders.clip_l.transformer.pooled_projection.weight"), projection)
        family = detect_family(file)
        architecture = architecture_of(file, info_of(folder), family, CONFIGS)
        clip_l = family.components(file.entries, architecture, ())[0]
    assert clip_l.keymap.to_original("text_projection.weight") in file.entries
    assert type(clip_l.module).__name__ == "CLIPTextModelWithProjection"


@pytest.mark.parametrize(
    ("file", "settings", "complaint"),
    [
        ("transformer/config.json", {"num_layers": 24}, "num_layers is 24; but the tensors say 3"),
        ("transformer/config.json", {"num_attention_heads": 3}, "num_attention_heads is 3; but the tensors say 2"),
        ("transformer/config.json", {"attention_head_dim": 32}, "attention_head_dim is 32; 64 is expected"),
        ("transformer/config.json", {"joint_attention_dim": 64}, "joint_attention_dim is 64; but the tensors say 256"),
        ("transformer/config.json", {"pos_embed_max_size": 96}, "pos_embed_max_size is 96; but the tensors say 8"),
        ("transformer/config.json", {"dual_attention_layers": [0]}, r"dual_attention_layers is \[0\]; but the tensors"),
        ("transformer/config.json", {"qk_norm": "layer_norm"}, "qk_norm is 'layer_norm'"),
        ("text_encoder/config.json", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("text_encoder_2/config.json", {"num_hidden_layers": 32}, "num_hidden_layers is 32; but the tensors say 3"),
        ("text_encoder_3/config.json", {"d_model": 4096}, "d_model is 4096; but the tensors say 256"),
        ("text_encoder_3/config.json", {"feed_forward_proj": "relu"}, "feed_forward_proj is 'relu'"),
        ("vae/config.json", {"shift_factor": "x"}, "shift_factor is 'x'; it must be a number"),
        ("scheduler/scheduler_config.json", {"shift": 0}, "shift is 0; it must be a number above 0"),
        ("scheduler/scheduler_config.json", {"use_dynamic_shifting": True}, "use_dynamic_shifting is True"),
        ("scheduler/scheduler_config.json", {"prediction_type": "epsilon"}, "known are flow_prediction"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(
    folders: Path, tmp_path: Path, file: str, settings: dict[str, Any], complaint: str
) -> None:
    folder = changed(folders, tmp_path, file, settings)
    with (
        pytest.raises(CheckpointError, match=rf"changed/{file}: .*{complaint}"),
        open_checkpoint(folder, with_optional=True) as opened,
    ):
        architecture_of(opened, info_of(folder), detect_family(opened), CONFIGS)


def test_shift_and_latent_scale_come_from_the_settings(folders: Path, tmp_path: Path) -> None:
    folder = changed(folders, tmp_path, "scheduler/scheduler_config.json", {"shift": 2.5})
    vae = folder / "vae" / "config.json"
    vae.write_text(json.dumps({**json.loads(vae.read_text()), "scaling_factor": 0.5, "shift_factor": -1}))
    with open_checkpoint(folder) as opened:
        found = architecture_of(opened, info_of(folder), detect_family(opened), CONFIGS)
    assert (found.noise_schedule.flow_shift, kl(found).scale_factor, kl(found).shift) == (2.5, 0.5, -1)


def test_a_transformer_of_another_kind_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    (folder / "transformer").mkdir(parents=True)
    write_json(folder / "model_index.json", {})
    save_file({"x_embedder.weight": torch.ones(1)}, folder / "transformer" / "diffusion_pytorch_model.safetensors")
    with pytest.raises(CheckpointError, match=r"transformer is not that of Stable Diffusion 3.*Known are"):
        open_checkpoint(folder)


def test_a_transformer_with_a_hole_is_refused(folders: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hole"
    shutil.copytree(folders / "sd3", folder)
    (path,) = (folder / "transformer").glob("*.safetensors")
    tensors = load_file(path)
    save_file({key: tensor for key, tensor in tensors.items() if key != "pos_embed.pos_embed"}, path)
    with open_checkpoint(folder) as file:
        family = detect_family(file)
        architecture = architecture_of(file, info_of(folder), family, CONFIGS)
        with pytest.raises(CheckpointError, match="not whole"):
            family.components(file.entries, architecture, ())


def test_all_files_count_for_the_hash(folders: Path) -> None:
    """T5's too: a folder is one model, whether or not T5 is switched on."""
    info = info_of(folders / "sd3")
    assert info.size_bytes == sum(
        path.stat().st_size
        for pattern in ("*.safetensors", "config.json", "scheduler_config.json")
        for path in info.path.rglob(pattern)
    )
