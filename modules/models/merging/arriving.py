"""A checkpoint that is stored in 8 bits while it comes: its bytes are read one after the other from a stream, each
tensor is encoded when it is there, and the file itself is never written. The result is that of `conversion.save_as`.

When the stream ends early, or the process is killed, the next one goes on from the last state that is on the disk: up
to which byte of the source all is written, the state of the source's hash there, and what the tensors lost.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from modules.atomic_files import output_error, write_atomic
from modules.bounded import read_json_file
from modules.errors import CheckpointError, OutputError
from modules.memory.storage import StorageRules
from modules.models.files.catalogue import CheckpointInfo
from modules.models.files.coded_file import DECLARATIONS_KEY, PACKED_KEY
from modules.models.files.kept_sha256 import KeptSha256
from modules.models.files.tensor_file import Closing, TensorEntry, parse_header
from modules.models.files.tensor_source import TensorSource
from modules.models.files.tensor_writer import PartWriter, Shapes
from modules.models.merging.conversion import Conversion, TensorReport, copy_yaml
from modules.models.merging.file_layout import FileLayout, PlannedTensor
from modules.models.names.fused import LayoutWriter, original_name
from modules.models.names.view import View
from modules.models.opening.checkpoint import open_checkpoint
from modules.version import PROGRAM_VERSION

PIECE_BYTES = 1 << 20
KEPT_EVERY_BYTES, KEPT_EVERY_S = 64 << 20, 1.0
"""How much of the source a killed process loses at most, besides the tensor at hand."""
MAX_WAITING_BYTES = 1 << 30
"""Of tensors that wait in memory for others that are stored with them."""


@dataclass(frozen=True)
class Asked:
    """`part`: the file that is written; `state`: where the state is kept; `target`: the file that the part will be;
    `name`, `size_bytes`: of the source."""

    part: str
    state: str
    target: str
    name: str
    size_bytes: int
    storage: str
    configs_dir: str


class ArrivingFile(Closing):
    """A `TensorSource` of those tensors that are here at the moment."""

    has_offsets = False

    def __init__(self, path: Path, header: bytes, size_bytes: int) -> None:
        """Raises `CheckpointError` for a header that is none, and for weights in codes."""
        self.path = path
        self.entries, self.metadata = parse_header(path, header, size_bytes)
        if DECLARATIONS_KEY in self.metadata or PACKED_KEY in self.metadata:
            raise CheckpointError(f"{path.name}: its weights are in few bits already. Get it as it is.")
        self.here: dict[str, Tensor] = {}

    def close(self) -> None:
        """Nothing is open."""

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """See `TensorSource`. Raises `CheckpointError` for a tensor that has not come yet."""
        if name not in self.here:
            raise CheckpointError(
                f"{self.path.name}: {name} has to be read before the others, which a file that comes does not allow. "
                "Get it as it is, and store it in 8 bits afterwards."
            )
        return self.here[name] if into is None else into.copy_(self.here[name])


@dataclass
class Group:
    """What is stored together: `items` and markers that need the tensors `inputs` of the source."""

    inputs: set[str]
    items: list[PlannedTensor]
    markers: list[str]
    is_done: bool = False

    @property
    def names(self) -> list[str]:
        """Of what it stores."""
        return [*(item.assignment.original_key for item in self.items), *self.markers]


def inputs_of(file: TensorSource, name: str) -> set[str]:
    """The tensors of the source that one of the view's is made of."""
    if isinstance(file, View):
        place = file.places[name]
        return inputs_of(place.file, place.key)
    return {name} if isinstance(file, ArrivingFile) else set()


def groups_of(conversion: Conversion) -> list[Group]:
    """All, in the order of the conversion. Parts of one tensor of the result are together."""
    file, groups = conversion.file, dict[str, Group]()
    for item in conversion.planned:
        assignment = item.assignment
        group = groups.setdefault(original_name(assignment.original_key).key, Group(set(), [], []))
        group.items.append(item)
        for name in (assignment.original_key, assignment.scale_key):
            group.inputs |= inputs_of(file, name) if name else set()
    for name in conversion.markers:
        groups[name] = Group(inputs_of(file, name), [], [name])
    return list(groups.values())


class Arriving:
    """The work of one process; `say` hands an answer on."""

    def __init__(self, asked: Asked, header: bytes, rules: StorageRules, say: Callable[[dict[str, Any]], None]) -> None:
        """Raises `CheckpointError` for what cannot be stored so."""
        self._asked, self._header, self._say = asked, header, say
        target = Path(asked.target)
        self._info = CheckpointInfo(target.with_name(asked.name), asked.name, asked.size_bytes, 0)
        self._source = ArrivingFile(self._info.path, header, asked.size_bytes)
        self._view = open_checkpoint(
            self._info.path,
            with_optional=True,
            optional_beside=False,
            alone=True,
            open_file=lambda path: self._source,
        )
        self._conversion = Conversion(
            self._view,
            self._info,
            Path(asked.configs_dir),
            rules,
            FileLayout.OWN,
            reads_values=False,
        )
        self._groups = groups_of(self._conversion)
        self._order = sorted(self._source.entries.items(), key=lambda pair: (pair[1].begin, pair[1].end))
        self._by_input: dict[str, list[Group]] = {}
        for group in self._groups:
            for name in group.inputs:
                self._by_input.setdefault(name, []).append(group)
        self._refuse_scattered()
        self._reports: dict[str, TensorReport] = {}
        self._hash = KeptSha256()
        self._position, self._data_begin = 0, 8 + len(header)
        self._states: dict[int, bytes] = {}  # of the hash where a tensor begins that is not stored yet
        self._kept_at, self._kept_time = 0, time.monotonic()

    def _refuse_scattered(self) -> None:
        """Raises `CheckpointError` where too much would wait for what it is stored with."""
        begins = {name: entry.begin for name, entry in self._order}
        waiting, ends = 0, list[tuple[int, int]]()
        for name, entry in self._order:
            groups = self._by_input.get(name, ())
            waiting -= sum(size for at, size in ends if at < entry.begin)
            ends = [(at, size) for at, size in ends if at >= entry.begin]
            if groups:
                waiting += entry.size_bytes
                ends.append((max(begins[one] for group in groups for one in group.inputs), entry.size_bytes))
            if waiting - entry.size_bytes > MAX_WAITING_BYTES:
                raise CheckpointError(
                    f"{self._info.name}: what is stored together lies far apart in it, so {waiting / 1e9:.1f} GB would "
                    "wait in memory. Get it as it is, and store it in 8 bits afterwards."
                )

    # -- the state ---------------------------------------------------------------------------------------------------

    def begin(self, writer: PartWriter) -> None:
        """Go on from the state that is on the disk, if it is of this file, and say from which byte on the source is
        wanted."""
        state = self._read_state()
        if state is not None:
            self._position, self._hash = int(state["done"]), KeptSha256(bytes.fromhex(state["hash"]))
            for name, values in state["reports"].items():
                self._reports[name] = TensorReport(name, *values)
            for group in self._groups:
                group.is_done = all(name in self._reports for name in group.names)
            for item in self._conversion.planned:
                name = item.assignment.original_key
                if name in self._reports:
                    self._conversion.note(self._reports[name])
        self._kept_at = self._position
        left = writer.size_bytes if state is None else self._left(writer)
        self._say({"done": self._position, "left_bytes": left, "size_bytes": writer.size_bytes})

    def _left(self, writer: PartWriter) -> int:
        """Bytes of the result that are still to be written, about: by how much of the source is to come."""
        return round(writer.size_bytes * (1 - self._position / self._asked.size_bytes))

    @property
    def _identity(self) -> dict[str, Any]:
        """What another try must have in common for its state to count."""
        return {
            "program": PROGRAM_VERSION,
            "header": hashlib.sha256(self._header).hexdigest(),
            "size_bytes": self._asked.size_bytes,
            "storage": self._asked.storage,
            "name": self._asked.name,
        }

    def _read_state(self) -> dict[str, Any] | None:
        try:
            state = read_json_file(Path(self._asked.state))
            if not Path(self._asked.part).is_file() or state["identity"] != self._identity or not KeptSha256().state:
                return None
            return dict(state)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # there is none that can be read: begun again

    def keep(self, writer: PartWriter) -> None:
        """Put what is done on the disk, and then its state."""
        if self._position < self._data_begin:
            return
        needed = [
            self._source.entries[name].begin for group in self._groups if not group.is_done for name in group.inputs
        ]
        done = min((self._position, *needed))
        state = self._hash.state if done == self._position else self._states.get(done, b"")
        self._kept_at, self._kept_time = self._position, time.monotonic()
        if not state:
            return
        writer.sync()
        kept = {
            "identity": self._identity,
            "done": done,
            "hash": state.hex(),
            "reports": {name: list(asdict(report).values())[1:] for name, report in self._reports.items()},
        }
        try:
            write_atomic(Path(self._asked.state), json.dumps(kept).encode())
        except OSError as error:
            raise output_error(self._asked.name, Path(self._asked.state).parent, error) from error
        self._states = {at: one for at, one in self._states.items() if at >= done}
        self._say({"kept": done})

    # -- the bytes ---------------------------------------------------------------------------------------------------

    def run(self, stream: BinaryIO) -> None:
        """Read the stream to its end. Raises `CheckpointError` for what cannot be stored, `OutputError`."""
        part = Path(self._asked.part)
        made: list[PartWriter] = []

        def make(path: Path, shapes: Shapes, room: int) -> PartWriter:
            made.append(PartWriter(path, shapes, room))
            return made[0]

        layout = self._conversion.writer(part, make)
        writer = made[0]
        self.begin(writer)
        with layout:
            try:
                whole = self._read_all(stream, writer, layout)
            finally:
                with suppress(OutputError):  # said already where something else went wrong
                    self.keep(writer)
            if whole:
                digest = self._hash.hexdigest()
                self._conversion.finish(layout, replace(self._info, sha256=digest))
                writer.complete()
                copy_yaml(self._info, Path(self._asked.target))
                self._say({"sha256": digest, "size_bytes": writer.size_bytes})

    def _read_all(self, stream: BinaryIO, writer: PartWriter, layout: LayoutWriter) -> bool:
        """Whether the stream had all of the source."""
        if self._position < self._data_begin:
            begins = memoryview(bytearray(self._data_begin))
            if not self._fill(stream, begins):
                return False
            if begins[8:] != self._header:
                raise CheckpointError(f"{self._info.name}: the file on the server is another one by now; try again.")
        for name, entry in self._order:
            if not entry.size_bytes:
                self._source.here[name] = torch.empty(entry.shape, dtype=entry.dtype)
        self._store_ready(self._groups, layout)
        for name, entry in self._order:
            if entry.end <= self._position:
                continue
            if not self._skip(stream, entry.begin - self._position):
                return False
            self._states[entry.begin] = self._hash.state
            groups = [group for group in self._by_input.get(name, ()) if not group.is_done]
            if not groups:
                if not self._skip(stream, entry.end - self._position):
                    return False
                continue
            if not self._take(stream, name, entry):
                return False
            self._store_ready(groups, layout)
            if self._position - self._kept_at >= KEPT_EVERY_BYTES or time.monotonic() - self._kept_time > KEPT_EVERY_S:
                self.keep(writer)
        return self._skip(stream, self._asked.size_bytes - self._position)

    def _take(self, stream: BinaryIO, name: str, entry: TensorEntry) -> bool:
        """Read a tensor into memory."""
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        data = memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        if not self._fill(stream, data):
            return False
        self._source.here[name] = tensor
        return True

    def _store_ready(self, groups: list[Group], layout: LayoutWriter) -> None:
        for group in groups:
            if not group.is_done and group.inputs <= self._source.here.keys():
                self._store(group, layout)

    def _store(self, group: Group, layout: LayoutWriter) -> None:
        for item in group.items:
            report = self._conversion.convert(item, layout)
            self._reports[report.name] = report
        for name in group.markers:
            layout.write(name, self._view.read(name))
            self._reports[name] = TensorReport(name, "", (), None, 0, 0)
        group.is_done = True
        for name in group.inputs:
            if all(one.is_done for one in self._by_input[name]):
                self._source.here.pop(name, None)

    def _fill(self, stream: BinaryIO, data: memoryview) -> bool:
        """Read and hash exactly so many bytes; False where the stream ends."""
        at = 0
        while at < data.nbytes:
            count = stream.readinto(data[at : at + PIECE_BYTES])  # type: ignore[attr-defined]
            if not count:
                return False
            self._hash.update(data[at : at + count])
            at += count
            self._position += count
        return True

    def _skip(self, stream: BinaryIO, count: int) -> bool:
        """Read and hash bytes that nothing is stored of."""
        while count > 0:
            data = memoryview(bytearray(min(count, PIECE_BYTES)))
            if not self._fill(stream, data):
                return False
            count -= data.nbytes
        return True
