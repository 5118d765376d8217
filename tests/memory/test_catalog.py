"""The catalog of storage formats says of each what its code does."""

import pytest
import torch

from modules.errors import UnknownNameError
from modules.memory.formats.blocks import BlockFormat, for_weight
from modules.memory.formats.catalog import FORMAT_SPECS, block_formats, chosen_formats, layout_facts
from modules.memory.formats.format import FORMATS


@pytest.mark.parametrize("name", list(FORMAT_SPECS))
def test_a_row_says_what_its_format_is(name: str) -> None:
    spec, storage = FORMAT_SPECS.get(name), FORMATS.get(name)
    assert (storage.name, storage.scaled) == (spec.name, spec.scaled) == (name, spec.scaled)
    assert isinstance(storage, BlockFormat) == spec.in_blocks
    bits = storage.bits_per_weight if isinstance(storage, BlockFormat) else 8 * storage.dtype.itemsize
    assert bits == spec.bits


@pytest.mark.parametrize("name", [name for name, spec in FORMAT_SPECS.items() if spec.error is not None])
def test_the_expected_error_is_the_measured_one(name: str) -> None:
    weight = torch.randn(256, 512, generator=torch.Generator().manual_seed(1)) * 0.02
    storage = for_weight(FORMATS.get(name), tuple(weight.shape))
    assert storage is not None
    encoded = storage.encode(weight)
    decoded = (encoded.storage or storage).decode(encoded.data, encoded.scale, torch.empty(weight.shape))
    found = float((decoded - weight).norm() / weight.norm())
    assert found == pytest.approx(FORMAT_SPECS.get(name).error, rel=0.12)


def test_lists_are_made_from_the_rows() -> None:
    assert chosen_formats()[0] == "fp8_e4m3fn_row" and "gguf_q4_0" not in chosen_formats()
    assert block_formats() == ("gguf_q8_0", "gguf_q5_1", "gguf_q5_0", "code4")
    assert layout_facts("gguf")["gguf_q5_1"] == {"file_type": 9} and "code4" not in layout_facts("comfyui")


def test_an_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"storage format 'fp7'.*fp8_e4m3fn_row.*code4"):
        FORMATS.get("fp7")
    assert FORMATS.canonical("CODE4") == "code4" and "fp7" not in FORMATS
