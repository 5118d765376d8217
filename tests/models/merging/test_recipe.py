"""The metadata of merged files."""

import hashlib
import json
from pathlib import Path

import pytest

from lib_workbench.merging.request import MergeOptions
from modules.models.files.catalogue import old_hash
from modules.models.files.tensor_file import TensorFile
from tests.models.merging.toys import Toys, toy

OPTIONS = MergeOptions(primary="a", secondary="b", multiplier=0.25, name="merged", discard="position_ids")


@pytest.fixture
def toys(tmp_path: Path) -> Toys:
    toys = Toys(tmp_path)
    toys.add("a.safetensors", toy(0), {"author": "A", "format": "x", "featherweight": "{}"})
    toys.add("b.safetensors", toy(1), {"author": "B", "licence": "free"})
    toys.add("c.safetensors", toy(2))
    return toys


def metadata(toys: Toys, options: MergeOptions) -> dict[str, str]:
    with TensorFile(toys.merge(options).path) as file:
        return file.metadata


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_recipe_says_what_was_done_to_which_models(toys: Toys) -> None:
    found = metadata(toys, OPTIONS)
    recipe = json.loads(found["sd_merge_recipe"])
    a, b = sha256(toys.folder / "a.safetensors"), sha256(toys.folder / "b.safetensors")
    assert recipe | {"version": ""} == {
        "type": "webui",
        "primary_model_hash": a,
        "secondary_model_hash": b,
        "tertiary_model_hash": None,
        "interp_method": "Weighted sum",
        "multiplier": 0.25,
        "save_as_half": True,
        "custom_name": "merged",
        "config_source": "A, B or C",
        "bake_in_vae": "None",
        "discard_weights": "position_ids",
        "is_inpainting": False,
        "is_instruct_pix2pix": False,
        "storage": "fp16",
        "version": "",
    }
    models = json.loads(found["sd_merge_models"])
    assert set(models) == {a, b}
    assert models[a]["name"] == "a.safetensors"
    assert models[a]["sd_merge_recipe"] is None
    assert models[b]["legacy_hash"] == old_hash(toys.folder / "b.safetensors")


def test_a_merge_of_merges_remembers_them_all(toys: Toys) -> None:
    first = toys.merge(OPTIONS).path
    found = metadata(
        toys,
        MergeOptions(primary="merged", secondary="b", tertiary="c", method="Add difference", name="second"),
    )
    models = json.loads(found["sd_merge_models"])
    names = {entry["name"] for entry in models.values()}
    assert names == {"merged.safetensors", "a.safetensors", "b.safetensors", "c.safetensors"}
    assert models[sha256(first)]["sd_merge_recipe"]["multiplier"] == 0.25


def test_an_inpainting_result_is_marked(toys: Toys) -> None:
    toys.add("wide.safetensors", toy(3, channels=9))
    found = metadata(toys, MergeOptions(primary="wide", secondary="b", name="merged"))
    assert json.loads(found["sd_merge_recipe"])["is_inpainting"] is True


def test_metadata_is_taken_over_and_added_to(toys: Toys) -> None:
    options = MergeOptions(primary="a", secondary="b", name="merged", metadata_json='{"licence": "mine"}')
    found = metadata(toys, options)
    assert (found["author"], found["licence"], found["format"]) == ("A", "mine", "pt")
    assert "featherweight" not in found


def test_each_part_of_the_metadata_can_be_left_out(toys: Toys) -> None:
    bare = MergeOptions(primary="a", secondary="b", name="1", add_recipe=False, copy_metadata=False)
    assert metadata(toys, bare) == {"format": "pt"}
    none = MergeOptions(primary="a", secondary="b", name="2", save_metadata=False, metadata_json='{"x": "y"}')
    assert metadata(toys, none) == {}


def test_damaged_metadata_of_a_model_is_left_out(toys: Toys, caplog: pytest.LogCaptureFixture) -> None:
    toys.add("odd.safetensors", toy(4), {"sd_merge_models": "{"})
    found = metadata(toys, MergeOptions(primary="odd", secondary="b", name="merged"))
    assert len(json.loads(found["sd_merge_models"])) == 2
    assert "sd_merge_models cannot be read" in caplog.text


def test_the_legacy_hash_is_of_64_kib_behind_the_first_mib(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a" * 0x100000 + b"b" * 0x10000 + b"c")
    assert old_hash(path) == hashlib.sha256(b"b" * 0x10000).hexdigest()[:8]
