"""Checkpoints that are stored in 8 bits while they come: to the bit what converting the whole file gives, after every
break, checked by the source's hash, known by it later, and refused where that cannot be."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modules.downloads import parts
from modules.downloads.downloads import DownloadRequest, Downloads
from modules.downloads.storing import source_sha256_of
from modules.downloads.transport import DownloadError, FileTransport, Timeouts
from modules.errors import (
    BusyError,
    CheckpointError,
    FeatherweightError,
    InvalidValueError,
    OutputError,
    UnknownNameError,
)
from modules.flags.flags import Flags
from modules.jobs.work.arriving import store
from modules.models.merging.conversion import save_as
from modules.paths import resolve_paths
from modules.processing.engine.precision import storage_rules
from tests.downloads.file_server import Behavior, Handler, safetensors, serving
from tests.models.dit_files import write_recipe
from tests.models.family_files import write_family
from tests.models.test_conversion import info_of
from tests.recordings import CONFIGS
from tests.thorough import thoroughly

ROOT = Path(__file__).parents[2]
STORAGE = "fp8_e4m3fn_row"
NAME, STORED = "model.safetensors", "model-8bit.safetensors"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A tiny checkpoint in the original layout."""
    return write_family(tmp_path_factory.mktemp("source"), "sd1").read_bytes()


class InThread:
    """The process as a thread of this one, which has imported torch already. To kill it is to end its input."""

    def __init__(self, command: list[str], **_: Any) -> None:
        read, write = os.pipe()
        heard, said = os.pipe()
        self.stdin, self.stdout = os.fdopen(write, "wb"), os.fdopen(heard, "rb")
        self._thread = threading.Thread(target=self._run, args=(command[-1], read, said))
        self._thread.start()

    def _run(self, asked: str, read: int, said: int) -> None:
        with os.fdopen(read, "rb") as stream, os.fdopen(said, "w", encoding="utf-8") as answers:
            store(asked, stream, answers)

    def wait(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    def kill(self) -> None:
        with suppress(OSError):
            self.stdin.close()


@pytest.fixture
def in_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_killed_processes_leave_a_state_that_is_gone_on_from` has real processes."""
    own = SimpleNamespace(Popen=InThread, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr("modules.downloads.storing.subprocess", own)


@pytest.fixture
def downloads(in_thread: None, tmp_path: Path) -> Iterator[Downloads]:
    paths = resolve_paths(Flags(data_dir=str(tmp_path)), ROOT)
    transport = FileTransport(timeouts=Timeouts(2.0, 20.0))
    yield Downloads(paths, transport, sleep=lambda seconds: None)
    transport.close()


@pytest.fixture(scope="module")
def expected(source: bytes, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What converting the whole file gives."""
    return converted(source, tmp_path_factory.mktemp("whole"))


def converted(source: bytes, folder: Path, storage: str = STORAGE) -> bytes:
    whole, target = folder / NAME, folder / "small.safetensors"
    whole.write_bytes(source)
    save_as(info_of(whole), CONFIGS, storage_rules(storage), target, alone=True)
    return target.read_bytes()


def request(address: str, **values: Any) -> DownloadRequest:
    return DownloadRequest(f"{address}/{NAME}", storage=STORAGE, **values)


def files_in(downloads: Downloads) -> list[str]:
    return sorted(path.name for path in downloads.paths.data_dir.rglob("*") if path.is_file())


def test_it_is_what_converting_the_whole_file_gives(downloads: Downloads, source: bytes, expected: bytes) -> None:
    seen: list[tuple[int, int]] = []
    remembered: list[str] = []
    with serving({f"/{NAME}": Behavior(source)}) as address:
        own = Downloads(downloads.paths, downloads.transport, remember=lambda path, name, fact: remembered.append(name))
        done = own.get(request(address), lambda *each: seen.append(each))
        assert done.path.read_bytes() == expected and done.path.name == STORED
        assert (done.storage, done.sha256) == (STORAGE, hashlib.sha256(source).hexdigest())
        assert source_sha256_of(done.path) == done.sha256
        assert seen[-1] == (len(source), len(source)) and files_in(own) == [STORED]
        assert remembered == ["source"], "the hash of the source is not that of the file"
        again = own.get(request(address), lambda done, total: None)
        moved = done.path.rename(done.path.with_name("mine.safetensors"))
        found = own.get(request(address), lambda done, total: None)
    assert again.was_there and found.was_there and found.path == moved, "it is known by the hash of its source"


def cases() -> list[Any]:
    """A transformer alone, of which parts of one tensor are stored apart; another family; another kind of format."""
    return [("z_image_tiny", STORAGE), thoroughly("sd3", "code4"), thoroughly("sdxl", "int8_convrot")]


@pytest.mark.parametrize(("model", "storage"), cases())
def test_other_families_and_formats(downloads: Downloads, tmp_path: Path, model: str, storage: str) -> None:
    folder = tmp_path / "whole"
    path = write_recipe(tmp_path / "a" / NAME, model) if "image" in model else write_family(tmp_path, model)
    data = path.read_bytes()
    folder.mkdir()
    with serving({f"/{NAME}": Behavior(data)}) as address:
        done = downloads.get(DownloadRequest(f"{address}/{NAME}", storage=storage), lambda done, total: None)
    assert done.path.read_bytes() == converted(data, folder, storage)


def test_it_goes_on_after_a_pause_at_each_tenth_and_a_broken_line(
    downloads: Downloads, source: bytes, expected: bytes
) -> None:
    """Each pause ends the process that stores; the next one begins with what its state says."""

    def breaks(handler: Handler, number: int) -> bool:
        if handler.headers.get("Range", "").endswith("-65535") or number % 2:
            return False
        handler.give(behavior, cut=len(source) // 30)
        return True

    behavior = Behavior(source, fault=breaks)
    kept: list[int] = []
    with serving({f"/{NAME}": behavior}) as address:
        for tenth in range(1, 10):

            def stop(done: int, total: int, at: int = len(source) * tenth // 10) -> None:
                if done >= at:
                    raise BusyError("stopped by the test")

            with pytest.raises(BusyError):
                Downloads(downloads.paths, downloads.transport, sleep=never).get(request(address), stop)
            ((folder, part),) = downloads.unfinished()
            assert (folder, part.name, part.storage) == ("Stable-diffusion", STORED, STORAGE)
            assert not (part.folder / STORED).exists()
            kept.append(part.done_bytes)
        done = downloads.get(request(address), lambda done, total: None)
    assert done.path.read_bytes() == expected and files_in(downloads) == [STORED]
    assert kept == sorted(kept) and kept[-1] > len(source) // 2, "what was stored is not asked for again"


def never(seconds: float) -> None:
    raise BusyError("stopped by the test")


GET = "import sys; from modules.cli.get import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.skipif(os.name != "posix", reason="signals to groups of processes")
def test_killed_processes_leave_a_state_that_is_gone_on_from(tmp_path: Path, source: bytes, expected: bytes) -> None:
    """Once the program alone is killed, whose process then ends by itself; once both are."""

    def slow(handler: Handler, number: int) -> bool:
        if handler.headers.get("Range", "").endswith("-65535"):
            return False
        begin = int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        begins.append(begin)
        handler.give(behavior, cut=len(source) // 2)
        time.sleep(5)
        return True

    begins: list[int] = []
    behavior = Behavior(source, fault=slow)
    folder = tmp_path / "models" / "Stable-diffusion"
    part = folder / f".{STORED}.part"
    with serving({f"/{NAME}": behavior}) as address:
        command = [sys.executable, "-c", GET, f"{address}/{NAME}", "--storage", "--data-dir", str(tmp_path)]
        for kills_all in (False, True):
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            sent, limit = behavior.sent_bytes, time.monotonic() + 120
            while behavior.sent_bytes - sent < len(source) // 3 and time.monotonic() < limit:
                time.sleep(0.02)
            time.sleep(0.3)
            (os.killpg if kills_all else os.kill)(process.pid, signal.SIGKILL)
            process.wait()
            assert not (folder / STORED).exists()
        behavior.fault = lambda handler, number: False
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"stored as {STORAGE}" in done.stdout
    assert (folder / STORED).read_bytes() == expected and not part.exists()
    assert begins[1] > 0, "after the first kill the state said where to go on"


def test_a_server_without_ranges_and_a_file_that_changes_begin_again(
    downloads: Downloads, source: bytes, tmp_path: Path
) -> None:
    other = source[:-8] + b"\1" * 8

    def changes(handler: Handler, number: int) -> bool:
        if not handler.headers.get("Range", "").endswith("-65535") and behavior.body is source:
            handler.give(behavior, cut=len(source) * 3 // 4)
            behavior.body, behavior.etag, behavior.has_ranges = other, '"v2"', False
            return True
        return False

    behavior = Behavior(source, fault=changes)
    with serving({f"/{NAME}": behavior}) as address:
        done = downloads.get(request(address), lambda done, total: None)
    folder = tmp_path / "other"
    folder.mkdir()
    assert done.path.read_bytes() == converted(other, folder)


def test_a_wrong_hash_leaves_nothing(downloads: Downloads, source: bytes) -> None:
    with (
        serving({f"/{NAME}": Behavior(source, sha256="0" * 64)}) as address,
        pytest.raises(DownloadError, match="is not what was announced"),
    ):
        downloads.get(request(address), lambda done, total: None)
    assert files_in(downloads) == []


def test_damaged_weights_and_a_full_disk(downloads: Downloads, source: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    length = 8 + int.from_bytes(source[:8], "little")
    header = json.loads(source[8:length])
    begin, end = header["model.diffusion_model.middle_block.0.in_layers.2.weight"]["data_offsets"]
    damaged = source[: length + begin] + b"\xff" * (end - begin) + source[length + end :]
    with serving({f"/{NAME}": Behavior(damaged), "/b.safetensors": Behavior(source)}) as address:
        with pytest.raises(CheckpointError, match=r"model\.safetensors: model\.diffusion_model\.middle_block"):
            downloads.get(request(address), lambda done, total: None)
        assert files_in(downloads) == [], "another try would find the same"
        monkeypatch.setattr(parts, "KEPT_FREE_BYTES", 1 << 62)
        with pytest.raises(OutputError, match="GB free"):
            downloads.get(request(address, name="b.safetensors"), lambda done, total: None)
        assert files_in(downloads) == []


def test_what_is_here_whole_is_not_downloaded_again(downloads: Downloads, source: bytes) -> None:
    whole = downloads.paths.checkpoint_dirs[0] / "mine.safetensors"
    whole.parent.mkdir(parents=True)
    whole.write_bytes(source)
    with (
        serving({f"/{NAME}": Behavior(source)}) as address,
        pytest.raises(InvalidValueError, match=r"here already as it comes, as mine\.safetensors.*without a download"),
    ):
        downloads.get(request(address), lambda done, total: None)


UNET = "model.diffusion_model.input_blocks.0.0.weight"


@pytest.mark.parametrize(
    ("name", "body", "sentence"),
    [
        ("a.gguf", b"GGUF" + bytes(20), "is a GGUF file, whose weights are in few bits already"),
        ("a.ckpt", b"PK\3\4" + bytes(60), "is a pickle, whose tensors can be told apart only when all of it is here"),
        ("a.safetensors", safetensors({UNET: ("F8_E4M3", [8, 8])}), r"in 8 bits already \(F8_E4M3\)"),
        ("a.safetensors", safetensors({"a.lora_down.weight": ("F16", [8, 8])}), "is a LoRA; checkpoints alone"),
    ],
    ids=["gguf", "pickle", "narrow", "lora"],
)
def test_what_cannot_be_stored_so_is_refused_before_it_comes(
    downloads: Downloads, name: str, body: bytes, sentence: str
) -> None:
    asked = DownloadRequest(f"/{name}", allows_pickles=True, storage=STORAGE)
    with serving({f"/{name}": Behavior(body)}) as address, pytest.raises(InvalidValueError, match=sentence):
        downloads.get(DownloadRequest(f"{address}{asked.source}", "", "", True, STORAGE), lambda done, total: None)
    assert files_in(downloads) == []


def test_an_unknown_format_and_a_model_that_is_none(downloads: Downloads) -> None:
    with pytest.raises(UnknownNameError, match="storage format 'fp4'"):
        downloads.checked(DownloadRequest("sd15", storage="fp4"))
    strange = safetensors({"model.diffusion_model.strange.weight": ("F16", [64, 64])})
    with (
        serving({f"/{NAME}": Behavior(strange)}) as address,
        pytest.raises(FeatherweightError, match="of no known model family"),
    ):
        downloads.get(request(address), lambda done, total: None)
    assert files_in(downloads) == []
