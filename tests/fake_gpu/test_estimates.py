"""What the memory estimate says of each stage, beside what a made-up GPU counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.stages import Stage
from tests.fake_gpu import fake_gpu
from tests.fake_gpu.jobs import UNETS, engine_of, leave, request_of
from tests.recordings import CONFIGS
from tests.thorough import thoroughly, usually

TOLERANCE = 0.05
SIDE_PX = 256


@pytest.mark.parametrize("memory_gb", [4, thoroughly(6), thoroughly(8), thoroughly(12)])
@pytest.mark.parametrize("family", usually(("sd1", "sdxl", "sd3"), lambda name: name == "sd1"))
@pytest.mark.parametrize("flag", ["--no-half-vae", thoroughly("--medvram"), thoroughly("--lowvram")])
def test_stages_take_what_was_estimated(root: Path, family: str, memory_gb: float, flag: str) -> None:
    assert family in UNETS
    with fake_gpu("cuda", memory_gb):
        engine = engine_of(root, family, flag)
        wanted = request_of(family, width=SIDE_PX, height=SIDE_PX, steps=1)
        estimator = MemoryEstimator(engine, CONFIGS)
        generate(wanted, engine, Output(Path()), Silent())
        needs = {need.stage: need.needs_bytes for need in estimator.plan(wanted).stages}
        record = generate(wanted, engine, Output(Path()), Silent()).memory
        assert record is not None
        found = {}
        for stage in (Stage.SAMPLE, Stage.DECODE):
            peak = record.peak(stage).allocated
            assert peak is not None
            found[stage] = needs[stage] / peak
        leave(engine)
    print(family, memory_gb, flag, {str(stage): round(ratio, 3) for stage, ratio in found.items()})
    assert all(abs(ratio - 1) <= TOLERANCE for ratio in found.values()), found
