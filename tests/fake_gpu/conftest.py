"""The files of families, written once, for jobs on a made-up GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_gpu.jobs import write_loras


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `root_of`, with LoRAs."""
    root = tmp_path_factory.mktemp("families")
    write_loras(root)
    return root
