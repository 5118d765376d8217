"""Whole jobs on a made-up GPU with less memory than the model wants, as its plan says, with a LoRA: nothing runs out,
and the headroom stays free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from tests.fake_gpu import fake_gpu
from tests.fake_gpu.jobs import FAMILIES, LORAS, TABLES_BYTES, USUAL_FAMILIES, engine_of, leave, pixels, request_of
from tests.fake_gpu.memory import CONTEXT_BYTES
from tests.recordings import CONFIGS
from tests.thorough import usually

HEADROOM_BYTES = 2_000_000
SHARE = 0.7
"""Of what the job takes with all weights on the GPU."""


@pytest.mark.parametrize("family", usually(FAMILIES, USUAL_FAMILIES.__contains__))
def test_a_job_runs_whole_in_less_memory_with_the_headroom_free(root: Path, family: str) -> None:
    lora = family if family in LORAS else "unet" if family in ("sd1", "sd2") else ""
    prompt = f"a red cat <lora:{lora}:1>" if lora else "a red cat"
    settings: dict[str, Any] = {"vram_headroom_gb": HEADROOM_BYTES / 1e9, "live_previews_enable": False}
    with fake_gpu("cuda", 8) as card:
        engine = engine_of(root, family)
        expected = generate(request_of(family, settings, prompt=prompt), engine, Output(Path()), Silent())
        whole = card.memory.peak
        leave(engine)
    there = round(SHARE * whole) + HEADROOM_BYTES
    with fake_gpu("cuda", (CONTEXT_BYTES + there) / 2**30) as card:
        engine = engine_of(root, family)
        estimator = MemoryEstimator(engine, CONFIGS)
        plain = request_of(family, settings, prompt=prompt)
        assert not estimator.plan(plain).fits
        streamed = request_of(family, {**settings, "stream_weights": "Layers"}, prompt=prompt)
        assert estimator.plan(streamed).needs_bytes < estimator.plan(plain).needs_bytes
        result = generate(streamed, engine, Output(Path()), Silent())
        assert card.memory.failures == 0 and card.memory.peak <= there - HEADROOM_BYTES
        assert pixels(result).shape == pixels(expected).shape and pixels(result).std() > 1
        leave(engine)
        assert card.memory.allocated < TABLES_BYTES
