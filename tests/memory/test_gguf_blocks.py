"""Block types of GGUF: the bytes and numbers of ggml's own package and of diffusers."""

import gguf
import pytest
import torch
from diffusers.quantizers.gguf import utils as theirs
from torch import nn

from modules.errors import InvalidValueError
from modules.memory.formats.blocks import BlockFormat, kept_bytes
from modules.memory.formats.format import FORMATS
from modules.memory.formats.gguf_blocks import GGUF_BLOCKS
from modules.memory.layer import Part, read_part, read_weight, shape_of, stored_state, stored_tensors, unmanage
from modules.memory.storage import StorageRules, stored_bytes
from tests.memory.storing import apply_storage

WRITTEN = [name for name, form in GGUF_BLOCKS.items() if form.pack is not None]


def random_blocks(form: BlockFormat, count: int = 64) -> torch.Tensor:
    """Any bytes, with scales that are finite: their exponent bits are cleared but for some."""
    data = torch.randint(0, 256, (count, form.block_bytes), generator=torch.Generator().manual_seed(3)).to(torch.uint8)
    for where in {"gguf_q6_k": (209,), "gguf_q3_k": (109,), "gguf_q2_k": (81, 83)}.get(form.name, (1, 3)):
        if where == 3 and form.name not in ("gguf_q4_1", "gguf_q5_1", "gguf_q4_k", "gguf_q5_k"):
            continue
        data[:, where] &= 0b10111011
    return data


@pytest.mark.parametrize("name", GGUF_BLOCKS)
def test_blocks_are_decoded_as_diffusers_does(name: str) -> None:
    form = GGUF_BLOCKS[name]
    data = random_blocks(form)
    kind = gguf.GGMLQuantizationType[name.removeprefix("gguf_").upper()]
    expected = theirs.dequantize_functions[kind](data, form.block, form.block_bytes, torch.float32)
    assert gguf.GGML_QUANT_SIZES[kind] == (form.block, form.block_bytes)
    assert torch.allclose(form.unpack(data), expected.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", WRITTEN)
def test_weights_are_encoded_as_ggmls_package_does(name: str) -> None:
    weight = torch.randn(16, 96, generator=torch.Generator().manual_seed(1)) / 50
    weight[3, :32] = 0
    kind = gguf.GGMLQuantizationType[name.removeprefix("gguf_").upper()]
    expected = torch.from_numpy(gguf.quants.quantize(weight.numpy(), kind))
    assert torch.equal(FORMATS.get(name).encode(weight).data, expected)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_stored_layer_computes_with_its_blocks(name: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(64, 128)
    x, weight = torch.randn(4, 1, 64), layer.weight.detach().clone()
    apply_storage(layer, StorageRules(name), torch.float32)
    assert (stored_tensors(layer, "weight")[0].dtype, shape_of(layer, "weight")) == (torch.uint8, (128, 64))
    decoded = read_weight(layer, "weight")
    assert decoded.shape == (128, 64) and 0 < (decoded - weight).norm() / weight.norm() < 0.12
    with torch.no_grad():
        assert torch.equal(layer(x), nn.functional.linear(x, decoded, layer.bias))
    assert torch.equal(read_part(Part(layer, "weight", 0, 32, 64)), decoded[32:64])
    assert torch.equal(read_part(Part(layer, "weight", 1, 3, 7)), decoded[:, 3:7])
    assert stored_bytes(layer) == kept_bytes(FORMATS.get(name), (128, 64)) + 128 * 4
    unmanage(layer)
    assert torch.equal(layer.weight, decoded)


def test_rows_that_are_not_whole_blocks_are_left_alone_and_types_that_are_only_read_say_so() -> None:
    layer = nn.Linear(40, 128)
    apply_storage(layer, StorageRules("gguf_q8_0"), torch.float32)
    assert layer.weight.dtype == torch.float32 and stored_state(layer) is None
    with pytest.raises(InvalidValueError, match=r"no rows of whole blocks of 32"):
        FORMATS.get("gguf_q8_0").encode(torch.ones(4, 40))
    with pytest.raises(InvalidValueError, match=r"gguf_q4_k and not be written.*LoRA mode exact"):
        GGUF_BLOCKS["gguf_q4_k"].encode(torch.ones(4, 256))
