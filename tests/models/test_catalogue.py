import hashlib
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from modules.errors import CheckpointError, UnknownNameError
from modules.models.files.catalogue import (
    OLD_HASH_BEGIN,
    OLD_HASH_BYTES,
    CheckpointCatalogue,
    HashCache,
    old_hash,
    sha256_of,
)

ROOT = Path(__file__).parents[2]


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


def test_a_checkpoint_asked_for_by_its_own_name_is_that_file(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = ("A/cat.safetensors", "b/deep/cat.safetensors", "sub_catfish.safetensors", "A/sub/Cat.safetensors")
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    listing = catalogue(folder)
    for info in listing.entries:
        for text in (info.title, info.name, info.name.upper(), str(info.path)):
            assert listing.get(text) == info
    assert not caplog.text
    assert listing.get("sub_catfish").name == "sub_catfish.safetensors"
    assert listing.get("cat").name == listing.get("CAT.SAFETENSORS").name == "cat.safetensors"
    (folder / "A" / "dog.ckpt").write_bytes(b"")
    (folder / "b" / "deep" / "dog.ckpt").write_bytes(b"")
    listing.refresh()
    assert listing.get("dog.ckpt").name == "A/dog.ckpt"
    assert "'dog.ckpt' may be any of A/dog.ckpt, b/deep/dog.ckpt. A/dog.ckpt is used" in caplog.text
    root = listing.with_hash(listing.get("cat.safetensors"))
    assert root.name == "cat.safetensors" and listing.get("cat.safetensors") == root


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


REMEMBERING = """
import sys
from pathlib import Path
from modules.models.files.catalogue import HashCache

cache, folder = HashCache(Path(sys.argv[1])), Path(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    cache.remember(folder / f"{sys.argv[3]}-{number}.bin", "family", sys.argv[3])
"""


def test_two_processes_lose_no_hash_of_each_other(tmp_path: Path) -> None:
    cache = tmp_path / "hashes.json"
    for name in ("server", "worker"):
        for number in range(40):
            (tmp_path / f"{name}-{number}.bin").write_bytes(b"x")
    script = [sys.executable, "-c", REMEMBERING, str(cache), str(tmp_path)]
    both = [
        subprocess.Popen([*script, name], stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT) for name in ("server", "worker")
    ]
    for process in both:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in both:
        process.communicate("go\n", timeout=60)
    found = HashCache(cache)
    lost = [
        f"{name}-{number}"
        for name in ("server", "worker")
        for number in range(40)
        if found.fact(tmp_path / f"{name}-{number}.bin", "family") != name
    ]
    assert lost == [] and [process.returncode for process in both] == [0, 0]


def test_a_checkpoint_answers_to_the_eight_digits_of_old_infotexts(folder: Path) -> None:
    content = b"a" * OLD_HASH_BEGIN + b"b" * OLD_HASH_BYTES + b"c"
    (folder / "old.ckpt").write_bytes(content)
    digits = hashlib.sha256(b"b" * OLD_HASH_BYTES).hexdigest()[:8]
    listing = catalogue(folder)
    for text in (digits, digits.upper(), f"old.ckpt [{digits}]", f"renamed since [{digits}]"):
        assert listing.get(text).name == "old.ckpt", text
    assert listing.find(f"old [{'0' * 8}]") == listing.get("old")
    assert listing.find("0" * 8) is None
    assert old_hash(folder / "sub") == ""


def diffusers_folder(path: Path) -> None:
    for part in ("unet", "text_encoder", "safety_checker"):
        (path / part).mkdir(parents=True)
        (path / part / "model.safetensors").write_bytes(part.encode())
    (path / "model_index.json").write_text('{"_class_name": "x", "unet": [], "safety_checker": [], "feature": 1}')


def test_a_folder_in_the_diffusers_layout_is_one_checkpoint(folder: Path) -> None:
    diffusers_folder(folder / "sub" / "my model.v2")
    (folder / "sub" / "my model.v2" / "whole.safetensors").write_bytes(b"whole")
    (folder / "sub" / "my model.v2.yaml").write_text("model: {}")
    listing = catalogue(folder)
    names = {info.name for info in listing.entries}
    assert names == {
        "cat.safetensors",
        "sub/catfish.safetensors",
        "sub/my model.v2",
        "sub/my model.v2/whole.safetensors",
    }
    info = listing.get("my model.v2")
    assert (info.is_folder, info.stem, info.model_name) == (True, "my model.v2", "sub_my model.v2")
    assert info.size_bytes == len(b"unet" + b"text_encoder")
    assert info.config_path == folder / "sub" / "my model.v2.yaml"
    assert listing.with_hash(info).title == f"sub/my model.v2 [{str(listing.get(info.name).sha256)[:10]}]"
    assert sha256_of(info.path) == listing.get(info.name).sha256


def test_a_folder_may_be_named_itself(folder: Path) -> None:
    diffusers_folder(folder / "model")
    cache = HashCache(folder.parent / "hashes.json")
    assert [info.name for info in CheckpointCatalogue([folder / "model"], cache).entries] == ["model"]
    assert [info.name for info in CheckpointCatalogue([], cache, files=[folder / "model"]).entries] == ["model"]
