"""A checkpoint that is larger than the memory is loaded all the same, in 8 bits or streamed from its file."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.forked import call_forked
from tests.models.family_files import TINY_FAMILIES
from tests.models.limited_loading import limited
from tests.models.original_keys import FileSizes, UNetSizes, even, file_shapes

DEPTHS = even((1, 1, 1, 0))
SIZES = FileSizes(
    UNetSizes(4, 64, (1, 2, 4, 4), *(DEPTHS[0], 1, DEPTHS[1]), 64), clip=TINY_FAMILIES["sd1"].clip, vae_width=32
)
WAYS = ("streamed", "fp8_e4m3fn_row")

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="bounds memory as Linux does")


@pytest.mark.parametrize("suffix", ["safetensors", "ckpt"])
def test_half_of_the_file_is_enough_in_8_bits_and_streamed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"large.{suffix}"
    tensors = {key: torch.full(shape, 0.01) for key, shape in file_shapes(SIZES).items()}
    if suffix == "ckpt":
        torch.save({"state_dict": tensors, "global_step": 3}, path)
    else:
        save_file(tensors, path)
    limit = path.stat().st_size // 2
    # A process of its own for the one that must fail: what the others have freed is room that no limit takes away.
    assert "error" in call_forked(limited, tmp_path / "plain", path, limit, ["plain"])["plain"], "the limit holds"
    found = call_forked(limited, tmp_path / "small", path, limit, WAYS)
    assert set(found) == set(WAYS)
    for facts in found.values():
        assert facts["finite"] is True
        assert facts["stored"] < limit
