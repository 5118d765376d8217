"""What a download says of itself while it comes."""

import pytest

from modules.jobs.work.downloads import Rate


@pytest.mark.parametrize(
    ("total", "text"),
    [
        (300_000_000, "120.0 of 300.0 MB, 10.0 MB/s, 18 s left"),
        (12_000_000_000, "0.12 of 12.00 GB, 10.0 MB/s, 20 min left"),
        (120_000_000_000, "0.12 of 120.00 GB, 10.0 MB/s, 3 h 20 min left"),
    ],
)
def test_progress_in_units_that_one_reads(total: int, text: str) -> None:
    """The rate is that of the last seconds: what was there before does not count."""
    now = [0.0]
    rate = Rate(lambda: now[0])
    assert rate.words(100_000_000, total) == text.partition(", ")[0].replace("120.0 of", "100.0 of").replace(
        "0.12", "0.10"
    )
    now[0] = 2.0
    assert rate.words(120_000_000, total) == text
