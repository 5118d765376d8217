"""A checkpoint that is larger than the memory is loaded all the same, in 8 bits or streamed from its file."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.models.family_files import TINY_FAMILIES
from tests.models.original_keys import FileSizes, UNetSizes, even, file_shapes

ROOT = Path(__file__).parent.parent.parent
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
    assert "error" in _facts(tmp_path / "plain", path, limit, "plain")["plain"], "the limit holds"
    found = _facts(tmp_path / "small", path, limit, *WAYS)
    assert set(found) == set(WAYS)
    for facts in found.values():
        assert facts["finite"] is True
        assert facts["stored"] < limit


def _facts(small: Path, path: Path, limit_bytes: int, *ways: str) -> dict[str, dict[str, Any]]:
    """What each way of loading gives, in one process; `small` is a folder for its tiny model."""
    command = [sys.executable, "-m", "tests.models.limited_loading", str(small), str(path), str(limit_bytes), *ways]
    reply = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert reply.returncode == 0, reply.stderr
    found: dict[str, dict[str, Any]] = json.loads(reply.stdout.splitlines()[-1])
    return found
