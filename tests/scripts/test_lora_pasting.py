"""Adapters of old infotexts are found by hash after their files were renamed, on the page and in the API."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from modules.adapters.adapter_facts import digests_of
from modules.adapters.catalogue import AdapterCatalogue
from modules.images.infotext import parse_infotext
from tests.extensions import lora_script


@pytest.fixture
def catalogue(tmp_path: Path) -> AdapterCatalogue:
    for number, name in enumerate(("new: name", "other", "third")):
        save_file({"a.diff": torch.full((2, 2), float(number))}, tmp_path / f"{name}.safetensors")
    return AdapterCatalogue((tmp_path,))


def short(catalogue: AdapterCatalogue, name: str) -> str:
    info = catalogue.find(name)
    assert info is not None
    return digests_of(info.path).tensors[:12]


def pasted(prompt: str, hashes: str, catalogue: AdapterCatalogue) -> str:
    text = f'{prompt}\nSteps: 20, Sampler: Euler, Seed: 1, Size: 64x64, Lora hashes: "{hashes}"'
    return str(lora_script("lora_pasting").with_names_of_now(parse_infotext(text), catalogue)["Prompt"])


@pytest.mark.parametrize(
    ("tag", "recorded", "expected"),
    [
        ("<lora:old:0.8>", "old", "<lora:new: name:0.8>"),
        ("<lora:old>", "old", "<lora:new: name>"),
        ("<lyco:old:te=1:unet=0.5:dyn=4>", "old", "<lyco:new: name:te=1:unet=0.5:dyn=4>"),
        ("<lora:o:l,d:0.8>", "old", "<lora:new: name:0.8>"),
        ("<lora:third:0.8>", "third", "<lora:third:0.8>"),  # not read for it: its own name is there
        ("<lora:new: name:0.8>", "new name", "<lora:new: name:0.8>"),
    ],
)
def test_a_renamed_adapter_is_called_by_its_name_of_now(
    tag: str, recorded: str, expected: str, catalogue: AdapterCatalogue
) -> None:
    hashes = f"{recorded}: {short(catalogue, 'new: name')}"
    assert pasted(f"a cat {tag}, a dog", hashes, catalogue) == f"a cat {expected}, a dog"


def test_two_files_that_swapped_their_names(catalogue: AdapterCatalogue) -> None:
    for info in catalogue.entries:
        catalogue.digests(info)
    hashes = f"other: {short(catalogue, 'third')}, third: {short(catalogue, 'other')}"
    assert pasted("<lora:other:1><lora:third:0.5>", hashes, catalogue) == "<lora:third:1><lora:other:0.5>"


@pytest.mark.parametrize("hashes", ["old: 0123456789ab", "old: ", "old", "else: 0123456789ab", "old: xyz", ":::,,:"])
def test_what_no_file_has_stays_as_it_is(hashes: str, catalogue: AdapterCatalogue) -> None:
    assert pasted("<lora:old:0.8>", hashes, catalogue) == "<lora:old:0.8>"


def test_the_hash_that_a_file_records_finds_it_even_if_it_is_not_its_own(tmp_path: Path) -> None:
    wrong = "0123456789ab" + 52 * "0"
    save_file({"a.diff": torch.ones(2, 2)}, tmp_path / "mine.safetensors", {"sshs_model_hash": wrong})
    catalogue = AdapterCatalogue((tmp_path,))
    (info,) = catalogue.entries
    for _ in range(2):
        assert catalogue.find(wrong[:12]) == info
        assert pasted("<lora:old:1><lora:mine:1>", f"old: {wrong[:12]}, mine: {wrong[:12]}", catalogue) == (
            "<lora:mine:1><lora:mine:1>"
        )
        assert catalogue.find(catalogue.digests(info).tensors[:12]) == info


def test_recorded_hashes() -> None:
    field = "a: 0123456789AB, b c: 0123456789ac, broken: 12, : 0123456789ab"
    assert lora_script("lora_pasting").recorded_hashes(field) == {"a": "0123456789ab", "b c": "0123456789ac"}
