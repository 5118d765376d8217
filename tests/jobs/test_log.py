"""What the log says of a finished job: true, and a sentence whatever the numbers are."""

import logging

import pytest

from modules.jobs.store import JobStore
from modules.processing.request.request import GenerationRequest
from tests.fakes import FakeExecutor
from tests.queues import JobQueue


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_finished_job_is_logged_with_its_time_and_no_wrong_plural(
    batch_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    queue = JobQueue(FakeExecutor(), JobStore(None))
    queue.start()
    with caplog.at_level(logging.INFO, "modules.jobs.dispatch"):
        request = GenerationRequest(prompt="x", steps=1, width=64, height=64, batch_size=batch_size)
        assert queue.submit(request, task_id="one").wait(120)
        queue.close()
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("one: ")]
    assert line.startswith("one: done") and " s" in line
    assert "1 images" not in line and "2 image " not in line
