"""Folders of models that cannot be read are named and skipped."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.models.autoencoders.files import VaeCatalogue
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.system.extra_folders import extra_folders_text, read_extra_folders
from modules.system.model_folders import FilesBelow, Listing, inside


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a file, a folder that the disk does not give, and an entry of which it says nothing."""
    folder = tmp_path / "models"
    for name in ("a.safetensors", "dying/b.safetensors", "odd.safetensors"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    scandir, stat = os.scandir, Path.stat

    def failing_scandir(path: str) -> object:
        if str(path).endswith("dying"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return scandir(path)

    def failing_stat(path: Path, **options: bool) -> os.stat_result:
        if path.name == "odd.safetensors":
            raise OSError(errno.EINVAL, "Invalid argument", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "scandir", failing_scandir)
    monkeypatch.setattr(Path, "stat", failing_stat)
    yield folder


def test_what_cannot_be_read_is_named_once_and_the_rest_is_there(
    models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    below = FilesBelow()
    for _ in range(2):
        assert below.of((models, models / "not there"), (".safetensors",)) == [
            (models, [models / "a.safetensors"]),
            (models / "not there", []),
        ]
    (fault,) = below.faults
    assert fault.startswith(f"{models / 'dying'} cannot be read (Input/output error)")
    assert caplog.text.count("cannot be read") == 1


def test_catalogues_begin_in_spite_of_it(models: Path, tmp_path: Path) -> None:
    vaes = VaeCatalogue((models,), (models,))
    assert [info.name for info in vaes.entries] == ["a.safetensors"] and vaes.faults
    checkpoints = CheckpointCatalogue((models,), HashCache(tmp_path / "hashes.json"))
    assert [info.name for info in checkpoints.entries] == ["a.safetensors"] and checkpoints.faults


def test_a_folder_above_the_data_folder_is_no_folder_of_models(tmp_path: Path) -> None:
    file = tmp_path / "data" / "model-folders.json"
    file.parent.mkdir()
    file.write_bytes(extra_folders_text({"VAE": [Path("/"), tmp_path, tmp_path / "vae"]}))
    folders, faults = read_extra_folders(file)
    assert folders == {"VAE": (tmp_path / "vae",)} and len(faults) == 2


def test_linked_folders_are_followed_once_and_rings_end(tmp_path: Path) -> None:
    models, other = tmp_path / "models", tmp_path / "other disk"
    for file in (models / "a.safetensors", models / "z" / "b.safetensors", other / "deep" / "c.safetensors"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    links = {
        models / "ring": models,
        models / "above": tmp_path,
        models / "m": models / "z",
        models / "more": other,
        models / "more again": other,
        other / "back": models,
        models / "nowhere": tmp_path / "not there",
    }
    for link, target in links.items():
        link.symlink_to(target, target_is_directory=True)
    names = ["a.safetensors", "more/deep/c.safetensors", "z/b.safetensors"]
    ((_, files),) = FilesBelow().of((models,), (".safetensors",))
    assert [file.relative_to(models).as_posix() for file in files] == names
    listed = [Path(entry.path) for entry in Listing.of([models]).with_suffix((".safetensors",))]
    assert sorted(file.relative_to(models).as_posix() for file in listed) == names
    checkpoints = CheckpointCatalogue((models,), HashCache(tmp_path / "hashes.json"))
    assert [info.name for info in checkpoints.entries] == names
    assert inside(models / "more" / "deep" / "c.safetensors", [models])
    (other / "secret.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "secret.png").write_bytes(b"x")
    assert inside(models / "more" / "secret.png", [models]) is None
    assert inside(models / "more" / ".." / "secret.png", [models]) is None
