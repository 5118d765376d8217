import hashlib
import os
from pathlib import Path

import pytest

from modules.errors import CheckpointError, UnknownNameError
from modules.models.catalogue import CheckpointCatalogue, HashCache


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    (models / "sub").mkdir(parents=True)
    (models / "cat.safetensors").write_bytes(b"cat")
    (models / "sub" / "catfish.safetensors").write_bytes(b"catfish")
    (models / "cat.vae.safetensors").write_bytes(b"vae")
    (models / "notes.txt").write_text("no model")
    return models


def catalogue(folder: Path) -> CheckpointCatalogue:
    return CheckpointCatalogue([folder], HashCache(folder.parent / "cache" / "hashes.json"))


def test_checkpoints_below_the_folder_are_listed_without_vaes(folder: Path) -> None:
    assert [info.name for info in catalogue(folder).entries] == ["cat.safetensors", "sub/catfish.safetensors"]


def test_a_hash_is_the_sha256_and_gets_into_the_title(folder: Path) -> None:
    listing = catalogue(folder)
    info = listing.with_hash(listing.get("cat"))
    digest = hashlib.sha256(b"cat").hexdigest()
    assert info.sha256 == digest
    assert info.title == f"cat.safetensors [{digest[:10]}]"
    assert listing.get(digest[:10]).name == "cat.safetensors"


def test_hashes_are_remembered_until_the_file_changes(folder: Path) -> None:
    first = catalogue(folder)
    first.with_hash(first.get("cat"))
    assert catalogue(folder).get("cat").sha256 is not None
    (folder / "cat.safetensors").write_bytes(b"dog")
    os.utime(folder / "cat.safetensors", ns=(1, 1))
    assert catalogue(folder).get("cat").sha256 is None


@pytest.mark.parametrize("name", ["catfish", "sub/catfish.safetensors", "sub_catfish", "CATFISH", "catfish [gone]"])
def test_a_checkpoint_answers_to_its_names(folder: Path, name: str) -> None:
    assert catalogue(folder).get(name).name == "sub/catfish.safetensors"


def test_a_part_of_a_title_finds_the_shortest(folder: Path) -> None:
    assert catalogue(folder).get("ca").name == "cat.safetensors"


def test_an_unknown_name_lists_the_known_ones(folder: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"'dog'.*cat\.safetensors, sub/catfish\.safetensors"):
        catalogue(folder).get("dog")


def test_refresh_finds_new_files(folder: Path) -> None:
    listing = catalogue(folder)
    (folder / "dog.safetensors").write_bytes(b"dog")
    assert listing.find("dog") is None
    listing.refresh()
    assert listing.find("dog") is not None


def test_an_empty_folder_says_where_to_put_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        catalogue(tmp_path / "nothing").default(None)


def test_a_file_given_by_flag_must_exist(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint file"):
        CheckpointCatalogue([], HashCache(tmp_path / "h.json"), files=[tmp_path / "gone.safetensors"])


def test_a_damaged_hash_cache_is_made_again(folder: Path) -> None:
    cache = folder.parent / "cache"
    cache.mkdir()
    (cache / "hashes.json").write_text("{broken")
    listing = catalogue(folder)
    assert listing.with_hash(listing.get("cat")).sha256 is not None
