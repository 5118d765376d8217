"""A checkpoint that is larger than the memory is loaded all the same, in 8 bits or streamed from its file."""

import json
import subprocess
import sys
from pathlib import Path

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

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="bounds memory as Linux does")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.safetensors"
    save_file({key: torch.full(shape, 0.01) for key, shape in file_shapes(SIZES).items()}, path)
    return path


def load(path: Path, way: str, limit_bytes: int) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.models.limited_loading", str(path), way, str(limit_bytes)]
    reply = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert reply.returncode == 0, reply.stderr
    result: dict[str, object] = json.loads(reply.stdout.splitlines()[-1])
    return result


def test_half_of_the_file_is_not_enough_for_the_model_as_it_is(checkpoint: Path) -> None:
    assert "error" in load(checkpoint, "plain", checkpoint.stat().st_size // 2)


@pytest.mark.parametrize("way", ["streamed", "fp8_e4m3fn_row"])
def test_and_is_enough_in_8_bits_and_streamed(checkpoint: Path, way: str) -> None:
    size = checkpoint.stat().st_size
    result = load(checkpoint, way, size // 2)
    assert result["finite"] is True
    assert isinstance(result["stored"], int) and result["stored"] < size / 2
