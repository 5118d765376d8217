"""Storing a checkpoint in 8 bits while it comes: which files and formats, and the process that does it
(`modules.jobs.work.arriving`), fed with the bytes of the source."""

from __future__ import annotations

import json
import logging
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.bounded import read_json
from modules.downloads.remote_file import SHA256, WORTHWHILE, RemoteFile, saved_by_eight_bits
from modules.errors import (
    BusyError,
    CheckpointError,
    FeatherweightError,
    InvalidValueError,
    OutputError,
    UnknownNameError,
)
from modules.memory.formats.catalog import FORMAT_SPECS, chosen_formats
from modules.models.detection.files import CHECKPOINTS, Detected
from modules.models.files.header import Header, read_metadata

log = logging.getLogger(__name__)

PROCESS = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from modules.jobs.work.arriving import main; code = main(sys.argv[1:]); sys.stdout.flush(); os._exit(code)"
)
"""Ctrl+C reaches it too, but it ends with its input; at once, without a second in which torch is taken down."""
READY_S = 180.0  # until it has imported torch, and a process before it has let go
ANSWER_S = 120.0
NARROW = ("F8_E4M3", "F8_E5M2", "I8", "U8")
RECEIPT_KEY = "featherweight"


@dataclass(frozen=True)
class Storage:
    """How a checkpoint is stored: the format, the source's header, and the program's folder."""

    name: str
    header: bytes
    root: Path


def check_storage(name: str) -> str:
    """The format, which is one that is chosen for models. Raises `UnknownNameError`; "" is none."""
    if name and name not in chosen_formats():
        raise UnknownNameError.of("storage format", name, chosen_formats())
    return name


def refuse_unstorable(remote: RemoteFile, header: Header, kind: Detected) -> None:
    """Raises `InvalidValueError` for files that are not stored in 8 bits while they come."""
    label = remote.source.label
    if header.format == "gguf":
        raise InvalidValueError(f"{label} is a GGUF file, whose weights are in few bits already: get it as it is.")
    if header.format == "pickle":
        raise InvalidValueError(
            f"{label} is a pickle, whose tensors can be told apart only when all of it is here: get it as it is, and "
            "store it in 8 bits afterwards."
        )
    if kind.folder != CHECKPOINTS:
        raise InvalidValueError(f"{label} is {kind.what}; checkpoints alone are stored in 8 bits. Get it as it is.")
    narrow = sum(header.types.get(name, 0) for name in NARROW)
    if narrow > header.parameters / 2:
        types = " and ".join(name for name in NARROW if name in header.types)
        raise InvalidValueError(f"{label} holds its weights in 8 bits already ({types}): get it as it is.")


def stored_bytes(remote: RemoteFile, header: Header, kind: Detected) -> int:
    """About what a checkpoint weighs in 8 bits: its matrices in one byte a value, the rest as it is. 0 for files that
    are not stored so, and where that saves little."""
    try:
        refuse_unstorable(remote, header, kind)
    except InvalidValueError:
        return 0
    saved = saved_by_eight_bits(header.tensors)
    return remote.size_bytes - saved if saved > remote.size_bytes * WORTHWHILE else 0


def stored_name(name: str, storage: str) -> str:
    """Return what the file is called that is made of a checkpoint of this name, as the page calls what it stores."""
    ending = "8bit" if FORMAT_SPECS.get(storage).bits == 8 else storage
    return f"{name.rpartition('.')[0]}-{ending}.safetensors"


def receipt_of(path: Path) -> Mapping[str, Any]:
    """Read what a file of ours says of how it was made; empty for others and for what cannot be read."""
    try:
        found = read_json(read_metadata(path).get(RECEIPT_KEY, ""))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def source_sha256_of(path: Path) -> str:
    """The hash of the file that one of ours was made of, which sites know it by; "" where it has no receipt."""
    found = SHA256.fullmatch(str(receipt_of(path).get("source_sha256", "")))
    return found[1].lower() if found else ""


class StoringProcess:
    """The process, from its start to its last answer. Raises what it answers, and `FeatherweightError` where it ends
    without one."""

    def __init__(self, target: Path, part: Path, state: Path, remote: RemoteFile, storage: Storage) -> None:
        """Waits until it says from which byte on the source is wanted: `done`, with `left_bytes` to write."""
        asked = {
            "part": str(part),
            "state": str(state),
            "target": str(target),
            "name": Path(remote.name).name,
            "size_bytes": remote.size_bytes,
            "storage": storage.name,
            "configs_dir": str(storage.root / "configs"),
        }
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 # closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            cwd=storage.root,
        )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, name="featherweight-storing", daemon=True).start()
        try:
            self.write(len(storage.header).to_bytes(8, "little") + storage.header)
            ready = self._answer("done", READY_S)
        except BaseException:
            self.kill()
            raise
        self.done, self.left_bytes = int(ready["done"]), int(ready["left_bytes"])

    def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            with self._process.stdout as answers:
                for line in answers:
                    self._answers.put(read_json(line))
        except (OSError, ValueError) as error:  # something that it uses has printed
            log.warning("the process that stores a model said something else: %s", error)
        finally:
            self._answers.put(None)

    def write(self, piece: bytes) -> None:
        """The next bytes of the source."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(piece)
        except (BrokenPipeError, ValueError, OSError) as error:
            raise self._ending() from error

    def _answer(self, key: str, timeout_s: float) -> dict[str, Any]:
        """The next answer with this key."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.flush()
        except OSError as error:
            raise self._ending() from error
        while True:
            try:
                answer = self._answers.get(timeout=timeout_s)
            except queue.Empty as error:
                raise BusyError(
                    "The process that stores the model in 8 bits does not answer; another one may be at the same file. "
                    "Try again later."
                ) from error
            if answer is None or "error" in answer:
                raise _error(answer) if answer else self._ended()
            if key in answer:
                return answer

    def _ending(self) -> FeatherweightError:
        """Why it takes no more bytes."""
        while (answer := self._answers.get(timeout=ANSWER_S)) is not None:
            if "error" in answer:
                return _error(answer)
        return self._ended()

    def _ended(self) -> FeatherweightError:
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").strip().splitlines()
        return FeatherweightError(
            "The process that stores the model in 8 bits ended "
            f"({lines[-1] if lines else 'without a word, as where memory runs out'}). What came is kept; try again."
        )

    def finish(self) -> tuple[str, int]:
        """All bytes were written: the sha256 of the source, and how large the result is."""
        answer = self._answer("sha256", ANSWER_S)
        return str(answer["sha256"]), int(answer["size_bytes"])

    def stop(self) -> None:
        """Have what came put on the disk, and end it."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended before
            self._process.stdin.close()
        try:
            self._process.wait(ANSWER_S)
            self._said.close()
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once."""
        assert self._process.stdin is not None
        self._process.kill()
        self._process.wait()
        with suppress(OSError):  # bytes that it did not take
            self._process.stdin.close()
        self._said.close()


def _error(answer: Mapping[str, Any]) -> FeatherweightError:
    return (OutputError if answer.get("is_output") else CheckpointError)(str(answer["error"]))
