"""Headers of model files, read in one place and without torch."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from modules.errors import CheckpointError
from modules.models.files.file_header import head_of, header_of
from modules.models.files.header import Header, Stored, as_header, read_metadata
from tests.downloads.file_server import safetensors

ROOT = Path(__file__).parents[2]


def text(value: bytes) -> bytes:
    return len(value).to_bytes(8, "little") + value


def gguf(architecture: bytes = b"wan", before: bytes = b"") -> bytes:
    """The header of a GGUF file with one tensor; `before` are two pairs in front of the architecture."""
    begins = b"GGUF" + (3).to_bytes(4, "little") + (1).to_bytes(8, "little") + (2).to_bytes(8, "little")
    number = text(b"general.file_type") + (4).to_bytes(4, "little") + bytes(4)
    return begins + (before or number) + text(b"general.architecture") + (8).to_bytes(4, "little") + text(architecture)


def test_names_shapes_and_types_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors({"a.weight": ("F16", [4, 64]), "a.bias": ("BF16", [4])}))
    header = header_of(path)
    assert header.tensors == {"a.weight": Stored((4, 64), "F16"), "a.bias": Stored((4,), "BF16")}
    assert (header.format, header.parameters, header.types) == ("safetensors", 260, {"F16": 256, "BF16": 4})


def test_the_architecture_of_a_gguf_file(tmp_path: Path) -> None:
    begins = gguf()
    assert head_of(begins, 999).architecture == "wan" and head_of(begins[:30], 999).architecture == ""
    listed = text(b"general.tags") + (9).to_bytes(4, "little") + (8).to_bytes(4, "little") + (1).to_bytes(8, "little")
    with_list = gguf(before=listed + text(b"image"))
    assert head_of(with_list, len(with_list)).architecture == "wan", "a list stands in front of it"
    path = tmp_path / "a.gguf"
    path.write_bytes(begins)
    assert header_of(path).architecture == "wan" and not header_of(path).tensors


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\x01", b"GGUF", (1 << 40).to_bytes(8, "little") + b"{}", text(b"[1]"), text(b"{"), text(b'{"a": 3}')),
        *(text(b'{"a": {"shape": 3, "dtype": "F16"}}'), text(b"[" * 50_000), text(b'{"__metadata__": 5}')),
    ],
)
def test_what_cannot_be_read_has_an_empty_header(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    assert not header_of(path).tensors and read_metadata(path) == {}
    assert header_of(tmp_path / "none") == Header("")


def test_a_pickle_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(b"PK\x03\x04")
    assert header_of(path).format == "pickle"


def test_a_damaged_header_is_named_with_its_file() -> None:
    with pytest.raises(CheckpointError, match="o/r: its header is not JSON"):
        as_header(b"{", "o/r")
    with pytest.raises(CheckpointError, match="o/r: its header cannot be read"):
        as_header(json.dumps({"a": {"dtype": "F16"}}).encode(), "o/r")


def test_the_length_of_a_header_is_read_in_one_place() -> None:
    by_hand = re.compile(r"from_bytes\([^)]*\)?[^)]*\"little\"|unpack\(\"<Q\"")
    found = [
        path.relative_to(ROOT).as_posix()
        for folder in ("modules", "extensions-builtin")
        for path in (ROOT / folder).rglob("*.py")
        if by_hand.search(path.read_text(encoding="utf-8"))
    ]
    assert found == ["modules/models/files/header.py"]


def test_reading_headers_imports_no_torch() -> None:
    code = "import sys, modules.models.files.header, modules.model_shelf.shelf; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
