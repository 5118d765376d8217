"""A GGUF checkpoint on a made-up GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.fake_gpu import FakeCard, fake_gpu
from tests.fake_gpu.jobs import engine_of, leave, made, pixels
from tests.models.family_files import family_tensors
from tests.models.gguf_files import write_gguf

STREAMED = {"stream_weights": "Layers"}


@pytest.fixture
def card() -> Iterator[FakeCard]:
    with fake_gpu("cuda", 8) as card:
        yield card


def test_gguf_blocks_are_decoded_on_the_card(root: Path, tmp_path: Path, card: FakeCard) -> None:
    write_gguf(tmp_path / "sd1.gguf", family_tensors("sd1"), "Q8_0", "sd1")
    results = []
    for settings in ({}, STREAMED):
        engine = engine_of(root, "sd1", checkpoints=tmp_path)
        results.append(pixels(made(engine, "sd1", settings, steps=1, checkpoint="sd1.gguf")))
        assert card.memory.allocated < 2 * sum(tensor.numel() for tensor in family_tensors("sd1").values())
        leave(engine)
        assert card.memory.tensors == 0
    assert results[0].std() > 1 and np.array_equal(results[0], results[1])
