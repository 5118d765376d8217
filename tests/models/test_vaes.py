"""Which VAE a checkpoint is used with."""

import json
from pathlib import Path

import pytest

from modules.errors import CheckpointError, UnknownNameError
from modules.models.autoencoders.files import VaeCatalogue, VaeOptions
from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo, HashCache
from modules.settings.values import Settings


@pytest.fixture
def checkpoint(tmp_path: Path) -> CheckpointInfo:
    folder = tmp_path / "models" / "sub"
    folder.mkdir(parents=True)
    (tmp_path / "vae").mkdir()
    (folder / "cat.safetensors").write_bytes(b"x")
    return CheckpointCatalogue([tmp_path / "models"], HashCache(tmp_path / "hashes.json")).get("cat")


def catalogue(checkpoint: CheckpointInfo, *names: str, fixed: Path | None = None) -> VaeCatalogue:
    """The named files in the VAE folder, or with a leading "./" beside the checkpoint."""
    root = checkpoint.path.parents[2]
    for name in names:
        folder = checkpoint.path.parent if name.startswith("./") else root / "vae"
        (folder / name.removeprefix("./")).write_bytes(name.encode())
    return VaeCatalogue([root / "vae"], [root / "models"], HashCache(root / "hashes.json"), fixed)


def chosen(listing: VaeCatalogue, checkpoint: CheckpointInfo, name: str = "Automatic", overrides: bool = True) -> str:
    info = listing.choose(VaeOptions(name, overrides), checkpoint)
    return info.name if info else "built-in"


def test_the_files_there_are(checkpoint: CheckpointInfo) -> None:
    listing = catalogue(checkpoint, "b.pt", "A.ckpt", "c.safetensors", "d.txt", "./x.vae.pt", "./y.pt")
    assert listing.choices() == ["Automatic", "None", "A.ckpt", "b.pt", "c.safetensors", "x.vae.pt"]


def test_without_a_file_it_is_the_one_inside(checkpoint: CheckpointInfo) -> None:
    assert chosen(catalogue(checkpoint, "other.pt"), checkpoint) == "built-in"


@pytest.mark.parametrize("name", ["./cat.vae.pt", "cat.vae.safetensors", "cat.ckpt", "cat-best.pt"])
def test_automatic_takes_a_file_named_like_the_checkpoint(checkpoint: CheckpointInfo, name: str) -> None:
    listing = catalogue(checkpoint, name, "dog.pt")
    assert chosen(listing, checkpoint) == name.removeprefix("./")
    assert chosen(listing, checkpoint, "dog.pt") == "dog.pt"
    assert chosen(listing, checkpoint, "None") == "built-in"
    assert chosen(listing, checkpoint, "dog.pt", overrides=False) == name.removeprefix("./")


def test_the_closer_name_wins(checkpoint: CheckpointInfo) -> None:
    assert chosen(catalogue(checkpoint, "cat-0.pt", "cat.vae.pt"), checkpoint) == "cat.vae.pt"


def test_the_chosen_one_serves_where_nothing_is_preferred(checkpoint: CheckpointInfo) -> None:
    assert chosen(catalogue(checkpoint, "dog.pt"), checkpoint, "dog.pt", overrides=False) == "dog.pt"


def test_the_notes_beside_a_checkpoint(checkpoint: CheckpointInfo) -> None:
    listing = catalogue(checkpoint, "cat.pt", "dog.pt", "cow.pt")
    notes = checkpoint.path.with_suffix(".json")
    for text, expected in (("dog.pt", "dog.pt"), ("None", "built-in"), ("Automatic", "cat.pt"), ("gone.pt", "cat.pt")):
        notes.write_text(json.dumps({"vae": text}))
        assert chosen(listing, checkpoint) == expected
        assert chosen(listing, checkpoint, "cow.pt", overrides=False) == expected
        assert chosen(listing, checkpoint, "cow.pt") == "cow.pt"
    notes.write_text("{broken")
    assert chosen(listing, checkpoint) == "cat.pt"


def test_the_fixed_one_goes_before_all(checkpoint: CheckpointInfo, tmp_path: Path) -> None:
    fixed = tmp_path / "fixed.pt"
    with pytest.raises(CheckpointError, match="--vae-path"):
        catalogue(checkpoint, fixed=fixed)
    fixed.write_bytes(b"")
    listing = catalogue(checkpoint, "dog.pt", fixed=fixed)
    assert chosen(listing, checkpoint, "dog.pt") == chosen(listing, checkpoint, "None") == "fixed.pt"


def test_an_unknown_name_lists_the_known_ones(checkpoint: CheckpointInfo) -> None:
    with pytest.raises(UnknownNameError, match=r"do\.pt.*dog\.pt"):
        chosen(catalogue(checkpoint, "dog.pt"), checkpoint, "do.pt")


def test_a_file_that_is_gone_is_unknown(checkpoint: CheckpointInfo) -> None:
    listing = catalogue(checkpoint, "dog.pt")
    listing.entries[0].path.unlink()
    with pytest.raises(UnknownNameError, match=r"dog\.pt"):
        chosen(listing, checkpoint, "dog.pt")


def test_refresh_and_hash(checkpoint: CheckpointInfo) -> None:
    listing = catalogue(checkpoint)
    catalogue(checkpoint, "dog.pt")
    assert listing.entries == ()
    assert [info.name for info in listing.refresh()] == ["dog.pt"]
    info = listing.choose(VaeOptions("dog.pt"), checkpoint)
    assert info is not None and info.sha256 is None, "no choice waits for a hash"
    hashed = listing.hashed(info)
    assert hashed.shorthash == str(hashed.sha256)[:10] == "2d3abbcc43"
    assert listing.choose(VaeOptions("dog.pt"), checkpoint) == hashed == listing.hashed(hashed)
    info.path.unlink()
    assert listing.hashed(info) == info


def test_a_file_that_was_written_again_is_another_one(checkpoint: CheckpointInfo) -> None:
    listing = catalogue(checkpoint, "dog.pt")
    before = listing.choose(VaeOptions("dog.pt"), checkpoint)
    assert before is not None and before.is_same_file(listing.choose(VaeOptions("dog.pt"), checkpoint))
    before.path.write_bytes(b"another")
    assert not before.is_same_file(listing.choose(VaeOptions("dog.pt"), checkpoint))
    assert not before.is_same_file(None)


def test_the_options_in_the_settings() -> None:
    assert VaeOptions.of(Settings()) == VaeOptions("Automatic", True)
    changed = Settings().with_changes({"sd_vae": "x.pt", "sd_vae_overrides_per_model_preferences": False})
    assert VaeOptions.of(changed) == VaeOptions("x.pt", False)
