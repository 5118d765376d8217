"""The memory timeline: peaks of stages, samples, JSON."""

import gc
import json
import sys
import time

import pytest
import torch

from modules.memory.timeline import MAX_SAMPLES, MemoryRecord, MemoryTimeline, Reading, resident_bytes
from modules.system.devices import release_memory

CPU = torch.device("cpu")
LARGE = 160_000_000  # bytes
SLACK = 40_000_000

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of main memory")


@pytest.fixture(autouse=True)
def nothing_freed_is_kept() -> None:
    """What earlier tests freed would be used again, and no new memory be seen."""
    gc.collect()
    release_memory(CPU)


def hold(size: int) -> None:
    torch.ones(size // 4)
    release_memory(CPU)  # a heap that is set up for a worker, by whatever test, keeps what is freed


def three_stages() -> tuple[MemoryRecord, dict[str, int]]:
    """A record of stages that hold much, half of it and nothing, and their peaks above the begin."""
    with MemoryTimeline(CPU, interval_s=10) as timeline:  # no sample falls into a stage: the kernel's mark is exact
        timeline.stage("large")
        hold(2 * LARGE)
        timeline.stage("small")
        hold(LARGE)
        timeline.stage("nothing")
    record = timeline.record()
    begin = record.begin.rss
    assert begin is not None
    return record, {item.stage: (item.peak.rss or 0) - begin for item in record.stages}


@only_linux
def test_a_stage_has_its_own_peak_and_not_that_of_the_one_before() -> None:
    wanted = {"large": 2 * LARGE, "small": LARGE, "nothing": 0}
    record, above = three_stages()
    for _ in range(4):  # threads that earlier tests left in this process may hold memory just then
        if all(abs(above[stage] - bytes_) < SLACK for stage, bytes_ in wanted.items()):
            break
        time.sleep(1)
        record, above = three_stages()
    assert abs(above["large"] - 2 * LARGE) < SLACK
    assert abs(above["small"] - LARGE) < SLACK
    assert above["nothing"] < SLACK
    assert record.peak().rss == record.peak("large").rss
    assert record.peak("unknown") == Reading()


def test_stages_follow_each_other_and_the_same_name_goes_on() -> None:
    with MemoryTimeline(CPU) as timeline:
        timeline.stage("a")
        timeline.stage("a")
        with timeline.during("b"):
            pass
    record = timeline.record()
    assert [item.stage for item in record.stages] == ["a", "b", "a"]
    for before, after in zip(record.stages, record.stages[1:], strict=False):
        assert before.begin_s <= before.end_s <= after.begin_s


def test_the_sampler_thins_itself_out_and_ends() -> None:
    with MemoryTimeline(CPU, interval_s=0.0005) as timeline:
        timeline.stage("long")
        time.sleep(0.5)
    samples = timeline.record().samples
    assert 10 < len(samples) <= MAX_SAMPLES + 1
    assert [sample.at_s for sample in samples] == sorted(sample.at_s for sample in samples)
    time.sleep(0.01)
    assert len(timeline.record().samples) == len(samples)


def test_json_of_a_record_in_the_middle_of_the_work() -> None:
    with MemoryTimeline(CPU) as timeline:
        timeline.stage("text")
        reply = json.loads(json.dumps(timeline.record().as_dict()))
    assert reply["device"] == "cpu"
    assert [stage["stage"] for stage in reply["stages"]] == ["text"]
    assert reply["samples"][0][1] == "text"
    assert set(reply["peak"]) == {"rss", "allocated", "reserved"}


@only_linux
def test_resident_bytes_are_those_of_this_process() -> None:
    before = resident_bytes()
    held = torch.ones(LARGE // 4)
    after = resident_bytes()
    assert before is not None and after is not None
    assert abs(after - before - held.nbytes) < SLACK


def test_what_a_stage_left_to_the_heap_does_not_count_in_the_one_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    released = []
    monkeypatch.setattr("modules.memory.timeline.release_memory", lambda device: released.append(device.type))
    with MemoryTimeline(torch.device("cpu")) as timeline:
        timeline.stage("decode")
        with timeline.during("save"):
            assert released == ["cpu"]
    assert [item.stage for item in timeline.record().stages] == ["decode", "save", "decode"]
