"""Memory that a driver has moved to main memory is found by readings alone, and said once."""

from modules.memory.spill import SpillDetector, StepTimes
from modules.system.devices import DeviceReading

GB = 1_000_000_000


def reading(reserved_gb: float, free_gb: float = 0.1, total_gb: float = 8) -> DeviceReading:
    reserved = round(reserved_gb * GB)
    return DeviceReading(round(free_gb * GB), round(total_gb * GB), reserved, reserved, reserved)


def findings(seconds: list[float | None], now: DeviceReading, work: list[int] | None = None) -> list[str]:
    detector = SpillDetector()
    works = work or [1] * len(seconds)
    found = [detector.step(each, second, now) for each, second in zip(works, seconds, strict=True)]
    return [item.notice for item in found if item is not None]


def test_more_reserved_than_there_is_is_found_at_once_and_said_once() -> None:
    (notice,) = findings([None, 1.0, 1.0, 9.0], reading(8.6))
    assert "8.6 GB are reserved on a GPU of 8.0 GB" in notice
    assert "VRAM headroom" in notice and "Prefer No Sysmem Fallback" in notice


def test_steps_that_take_many_times_as_long_on_a_full_device_are_found() -> None:
    (notice,) = findings([None, 1.0, 1.1, 1.0, 6.0, 7.0, 7.0, 7.0], reading(7.6))
    assert "a step took 6 times as long as before" in notice


def test_a_job_that_is_slow_from_its_first_step_on_is_compared_with_earlier_ones() -> None:
    known: StepTimes = {}
    first, second = SpillDetector(known), SpillDetector(known)
    assert [first.step(1, seconds, reading(7)) for seconds in (None, 1.0, 1.1, 1.0)] == [None] * 4
    found = [second.step(1, seconds, reading(7.6)) for seconds in (None, 5.0, 6.0, 7.0)]
    assert found[:2] == [None, None] and found[2] is not None and found[3] is None
    assert "a step took 5 times as long as before" in found[2].notice
    assert [SpillDetector(known).step(2, 9.0, reading(7.6)) for _ in range(3)] == [None] * 3  # other work


def test_what_is_no_spill() -> None:
    assert findings([1.0, 1.0, 1.0, 6.0, 1.0, 1.0, 6.0], reading(7.6)) == []  # something else, once and again
    assert findings([1.0, 1.0, 1.0, 6.0, 6.0, 6.0], reading(5, free_gb=2.5)) == []  # there is room
    assert findings([1.0, 1.0, 1.0, 6.0, 6.0, 6.0], reading(7.6), [1, 1, 1, 2, 2, 2]) == []  # a larger image
    assert findings([5.0, 1.0, 6.0, 6.0], reading(7.6)) == []  # too few steps to compare with
    assert findings([1.0, 1.0, 1.0, 2.0, 2.0, 2.0], reading(7.6)) == []
