import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo, HashCache
from modules.models.files.hashing import BackgroundHasher, HashProgress


@pytest.fixture
def catalogue(tmp_path: Path) -> CheckpointCatalogue:
    models = tmp_path / "models"
    models.mkdir()
    for name in ("a", "b"):
        (models / f"{name}.safetensors").write_bytes(name.encode() * 3_000_000)
    return CheckpointCatalogue([models], HashCache(tmp_path / "hashes.json"))


class Slow(CheckpointCatalogue):
    """Waits for `go` before it reads, and counts."""

    go: threading.Event
    calls: int = 0

    def with_hash(
        self, info: CheckpointInfo, on_read: Callable[[int], None] = lambda read_bytes: None
    ) -> CheckpointInfo:
        self.calls += 1
        on_read(info.size_bytes // 2)
        self.go.wait(10)
        on_read(info.size_bytes)
        return super().with_hash(info, on_read)


@pytest.fixture
def slow(catalogue: CheckpointCatalogue, tmp_path: Path) -> Slow:
    found = Slow([tmp_path / "models"], HashCache(tmp_path / "slow.json"))
    found.go = threading.Event()
    return found


def test_who_begins_does_not_wait_and_who_finishes_gets_the_sum(slow: Slow) -> None:
    done: list[CheckpointInfo] = []
    hasher = BackgroundHasher(slow, done.append)
    info = slow.get("a")
    hasher.begin(info)
    hasher.begin(info)
    assert slow.get("a").sha256 is None
    slow.go.set()
    found = hasher.finish(info)
    assert found.sha256 == hashlib.sha256(b"a" * 3_000_000).hexdigest()
    assert slow.get("a") == found
    assert slow.calls == 1
    assert hasher.finish(found) is found


def progress_of(hasher: BackgroundHasher) -> HashProgress | None:
    return hasher.progress


def test_progress_says_which_and_how_far(slow: Slow) -> None:
    hasher = BackgroundHasher(slow)
    assert progress_of(hasher) is None
    hasher.begin(slow.get("b"))
    for _ in range(1000):
        if progress_of(hasher) is not None:
            break
        threading.Event().wait(0.005)
    assert progress_of(hasher) == HashProgress("b.safetensors", 0.5)
    slow.go.set()
    hasher.finish(slow.get("b"))
    assert progress_of(hasher) is None


def test_a_file_that_is_gone_has_no_hash(catalogue: CheckpointCatalogue) -> None:
    info = catalogue.get("a")
    info.path.unlink()
    assert BackgroundHasher(catalogue).finish(info) == info


def test_closing_stops_the_reading(slow: Slow) -> None:
    hasher = BackgroundHasher(slow)
    info = slow.get("a")
    hasher.begin(info)
    waiting = hasher._future(info)
    hasher.close()
    slow.go.set()
    assert waiting.result(10).sha256 is None
    assert hasher.finish(info) is info
