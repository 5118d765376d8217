"""Paths: defaults of the reference UI, what each folder flag replaces or adds, and making folders only when asked."""

import json
from pathlib import Path

import pytest

from modules.errors import OutputError
from modules.flags.flags import parse_flags
from modules.system.paths import Paths, resolve_paths


def paths_of(root: Path, *argv: str) -> Paths:
    return resolve_paths(parse_flags(argv), root)


def test_defaults_lie_beside_the_program(tmp_path: Path) -> None:
    paths = paths_of(tmp_path)
    assert paths.checkpoint_dirs == (tmp_path / "models" / "Stable-diffusion",)
    assert paths.vae_dirs == (tmp_path / "models" / "VAE",)
    assert paths.lora_dirs == (tmp_path / "models" / "Lora", tmp_path / "models" / "LyCORIS")
    assert paths.upscaler_dirs["ESRGAN"] == tmp_path / "models" / "ESRGAN"
    assert paths.outputs_dir == tmp_path / "outputs"
    assert (paths.config_file, paths.jobs_file) == (tmp_path / "config.json", tmp_path / "jobs.sqlite")
    assert paths.styles_files == (tmp_path / "styles.csv",)
    assert paths.extension_dirs == (tmp_path / "extensions-builtin", tmp_path / "extensions")


def test_deciding_touches_nothing(tmp_path: Path) -> None:
    paths_of(tmp_path, "--data-dir", str(tmp_path / "data"))
    assert list(tmp_path.iterdir()) == []


def test_data_dir_moves_what_the_user_makes_and_keeps_the_shipped_model(tmp_path: Path) -> None:
    data = tmp_path / "data"
    paths = paths_of(tmp_path, "--data-dir", str(data))
    assert paths.checkpoint_dirs == (data / "models" / "Stable-diffusion", tmp_path / "models" / "Stable-diffusion")
    assert paths.lora_dirs[-1] == tmp_path / "models" / "Lora"
    assert paths.tiny_vae_dirs[-1] == tmp_path / "models" / "VAE-taesd"
    assert paths.embeddings_dir == data / "embeddings"
    assert paths.config_file == data / "config.json"
    assert paths.builtin_extensions_dir == tmp_path / "extensions-builtin"
    assert paths.model_config == tmp_path / "configs" / "v1-inference.yaml"


def test_models_dir_moves_only_models(tmp_path: Path) -> None:
    paths = paths_of(tmp_path, "--models-dir", str(tmp_path / "m"))
    assert paths.lora_dirs[0] == tmp_path / "m" / "Lora"
    assert paths.hypernetwork_dir == tmp_path / "m" / "hypernetworks"
    assert paths.outputs_dir == tmp_path / "outputs"


def test_checkpoint_and_vae_folders_are_added(tmp_path: Path) -> None:
    paths = paths_of(tmp_path, "--ckpt-dir", "/c", "--vae-dir", "/v")
    assert paths.checkpoint_dirs == (tmp_path / "models" / "Stable-diffusion", Path("/c").absolute())
    assert paths.vae_dirs[1] == Path("/v").absolute()


def test_other_folders_are_replaced(tmp_path: Path) -> None:
    argv = ("--lora-dir", "/l", "--embeddings-dir", "/e", "--hypernetwork-dir", "/h", "--esrgan-models-path", "/u")
    paths = paths_of(tmp_path, *argv, "--ui-settings-file", "/s.json", "--styles-file", "/a*.csv")
    assert (paths.lora_dirs[0], paths.embeddings_dir) == (Path("/l").absolute(), Path("/e").absolute())
    assert (paths.hypernetwork_dir, paths.upscaler_dirs["ESRGAN"]) == (Path("/h").absolute(), Path("/u").absolute())
    assert (paths.config_file, paths.styles_files) == (Path("/s.json").absolute(), (Path("/a*.csv").absolute(),))


def test_given_folders_are_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert paths_of(Path("/program"), "--lora-dir", "mine").lora_dirs[0] == tmp_path / "mine"


def test_ensure_makes_our_folders_and_not_a_misspelt_one(tmp_path: Path) -> None:
    paths = paths_of(tmp_path, "--ckpt-dir", str(tmp_path / "chekpoints"))
    paths.ensure()
    paths.ensure()
    assert paths.checkpoint_dirs[0].is_dir() and paths.outputs_dir.is_dir() and paths.cache_dir.is_dir()
    assert not (tmp_path / "chekpoints").exists()


def test_ensure_names_the_folder_it_cannot_make(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("a file in the way", encoding="utf-8")
    with pytest.raises(OutputError, match=r"outputs cannot be created.*--data-dir"):
        paths_of(tmp_path).ensure()


def test_paths_fill_the_flags_of_the_reference(tmp_path: Path) -> None:
    shown = paths_of(tmp_path).as_flags()
    assert shown["data_dir"] == str(tmp_path)
    assert shown["lora_dir"] == str(tmp_path / "models" / "Lora")


def test_folders_of_models_that_lie_elsewhere_are_read_beside_ours(tmp_path: Path) -> None:
    folders = {"Stable-diffusion": ["/c"], "VAE": ["/v"], "Lora": ["/l"], "embeddings": ["/e"], "ESRGAN": ["/u"]}
    elsewhere = {kind: [str(Path(one).absolute()) for one in listed] for kind, listed in folders.items()}
    (tmp_path / "model-folders.json").write_text(json.dumps({**elsewhere, "SwinIR": "x"}), encoding="utf-8")
    paths = paths_of(tmp_path)
    assert paths.checkpoint_dirs[1] == Path("/c").absolute()
    assert Path("/v").absolute() in paths.vae_dirs and Path("/v").absolute() in paths.module_dirs
    assert Path("/l").absolute() in paths.lora_dirs and paths.lora_dirs[0] == tmp_path / "models" / "Lora"
    assert paths.embeddings_dirs == (tmp_path / "embeddings", Path("/e").absolute())
    assert paths.all_upscaler_dirs["ESRGAN"] == (tmp_path / "models" / "ESRGAN", Path("/u").absolute())
    assert paths.notices[0].startswith("model-folders.json: SwinIR was left out: it is no list of full paths.")


def test_a_broken_file_of_folders_is_named_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "model-folders.json").write_text("{", encoding="utf-8")
    paths = paths_of(tmp_path)
    assert paths.extra_dirs == {} and "model-folders.json was left out" in paths.notices[0]
