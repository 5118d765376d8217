"""`launch.py offload-clean`."""

from pathlib import Path

import pytest
import torch

from modules.cli.commands import load_command
from modules.memory.streaming.blobs import BlobStore


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    store = BlobStore(tmp_path / "cache" / "offload")
    for number in range(3):
        store.keep(torch.full((250_000,), float(number)))
    return tmp_path


def run(*argv: str) -> int:
    return load_command("offload-clean")(argv)


def test_it_lists_and_deletes(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--data-dir", str(data_dir))
    assert run(*where, "--list") == 0
    assert "3 files, 3 MB" in capsys.readouterr().out
    assert run(*where, "--keep-gb", "0.001") == 0
    assert "deleted 2 files, 2 MB" in capsys.readouterr().out
    assert run("--offload-dir", str(data_dir / "cache" / "offload")) == 0
    assert "deleted 1 files, 1 MB" in capsys.readouterr().out
    assert run(*where) == 0
    assert "0 files" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["-1", "inf", "much"])
def test_a_wrong_number_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--keep-gb", wrong)
    assert "--keep-gb" in capsys.readouterr().err
