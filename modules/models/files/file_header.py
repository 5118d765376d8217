"""Headers of files of any format on disk, and of the beginnings of files elsewhere. Imports no torch.

A pickle in torch's zip form has its table of tensors as the first file of the archive; an older one is four pickles in
a row, and the last has the table. Both are read as plain data.
"""

import pickle
import struct
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path

from modules.errors import CheckpointError
from modules.models.files.header import GgufReader, Header, Stored, as_header, format_of, read_raw
from modules.models.files.pickled import Inert, Machine, StoredTensor, modules_of, tensors_of
from modules.models.files.pieces import pieces_of

HEAD_BYTES = 1 << 20
"""What is read of files whose header does not say how long it is."""
ZIPPED, METHOD_AT, LENGTHS_AT, LOCAL_BYTES = b"PK\x03\x04", 8, 26, 30
TORCH_MAGIC = 0x1950A86A20F9469CFC6C
LEVELS = ("state_dict", "params_ema", "params", "model", "module", "depth_model")
"""Under which programs put the weights; the first that is there counts."""
MAX_LEVELS = 4
HOLDERS = (StoredTensor, Inert, Mapping, list, tuple)
MAX_WAITING = 1 << 16


def header_of(path: Path) -> Header:
    """Read the header of a file, with all its pieces where it is one of several; an empty one for what cannot be read,
    as loading says what is wrong with that."""
    try:
        headers = [_header_of(piece) for piece in pieces_of(path)]
    except (OSError, ValueError, CheckpointError):
        return Header("")
    if len(headers) == 1:
        return headers[0]
    tensors = {name: entry for header in headers for name, entry in header.tensors.items()}
    return Header(headers[0].format, tensors, headers[0].metadata, b"", all(header.is_whole for header in headers))


def _header_of(path: Path) -> Header:
    size = path.stat().st_size
    with path.open("rb") as file:
        begins = file.read(LOCAL_BYTES)
        file.seek(0)
        if (found := format_of(begins)) == "safetensors":
            return as_header(read_raw(file.read, size, path.name), path.name)
        return Header(found) if found == "onnx" else head_of(file.read(HEAD_BYTES), size)


def head_of(begins: bytes, size: int) -> Header:
    """Return what the first bytes of a GGUF file or a pickle of `size` bytes say."""
    if format_of(begins) == "gguf":
        return GgufReader(BytesIO(begins).read, size, "").head()
    stream, machine = BytesIO(begins), Machine()
    found: dict[str, Stored] = {}
    is_whole = True
    try:
        found = dict(_named(_content(stream, machine)))
    except (ValueError, IndexError, KeyError, OverflowError, struct.error, pickle.UnpicklingError):  # cut off
        is_whole = False
        found = {key: Stored(tensor.shape, tensor.storage.dtype) for key, tensor in machine.named()}
    return Header("pickle", found, is_whole=is_whole)


def _content(stream: BytesIO, machine: Machine) -> object:
    start = stream.read(LOCAL_BYTES)
    if start.startswith(ZIPPED):
        name, extra = struct.unpack_from("<HH", start, LENGTHS_AT)
        if not stream.read(name).endswith(b"data.pkl") or start[METHOD_AT : METHOD_AT + 2] != b"\0\0":
            raise ValueError("an archive that is not torch's")
        stream.seek(extra, 1)
        return machine.run(stream)
    stream.seek(0)
    content = Machine().run(stream)
    if content != TORCH_MAGIC:
        return content
    for _ in ("version", "system"):
        Machine().run(stream)
    return machine.run(stream)


def _named(content: object) -> Iterator[tuple[str, Stored]]:
    """Yield the tensors of what was pickled by their dotted names, without the levels that training scripts put them
    under."""
    for _ in range(MAX_LEVELS):
        inner = (content.get(level) for level in LEVELS) if isinstance(content, Mapping) else iter(())
        held = next((one for one in inner if isinstance(one, Inert) or (isinstance(one, Mapping) and one)), None)
        if held is None:
            break
        content = held
    waiting: list[tuple[str, object]] = [("", content)]
    for _ in range(MAX_WAITING):
        if not 0 < len(waiting) < MAX_WAITING:
            return
        at, value = waiting.pop()
        if isinstance(value, StoredTensor):
            yield at, Stored(value.shape, value.storage.dtype)
            continue
        table: object = tensors_of(modules_of(value)) if isinstance(value, Inert) else value
        listed = enumerate(table) if isinstance(table, list | tuple) else ()
        items = table.items() if isinstance(table, Mapping) else listed
        inside = [(f"{at}.{name}".strip("."), one) for name, one in items if isinstance(one, HOLDERS)]
        waiting += reversed(inside)
