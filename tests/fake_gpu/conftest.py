"""The files of all families, written once, and what each test may ask of a made-up GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_gpu.jobs import write_families


@pytest.fixture(scope="package")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `write_families`."""
    root = tmp_path_factory.mktemp("families")
    write_families(root)
    return root
