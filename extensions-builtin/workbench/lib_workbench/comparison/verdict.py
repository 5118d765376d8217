"""Verdict of a comparison of precisions, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.system.texts import page_text

if TYPE_CHECKING:
    from lib_workbench.comparison.compare import Row

CLOSENESS = (
    (40.0, page_text("no difference to be seen")),
    (30.0, page_text("small differences, hard to see")),
    (20.0, page_text("details differ")),
    (float("-inf"), page_text("another image")),
)
"""From this PSNR in dB on, in words; customary limits for images of 8 bits a channel."""


def closeness(psnr_db: float) -> str:
    """A PSNR in words."""
    if psnr_db == float("inf"):
        return "identical"
    return next(words for limit, words in CLOSENESS if psnr_db >= limit)


def verdict(rows: Sequence[Row]) -> str:
    """Say what one wins and loses, in one or two sentences."""
    first, others = rows[0], rows[1:]
    if not others:
        return page_text(f"Only {name_of(first)} was made; there is nothing to compare it with.")
    smaller = [row for row in others if row.weight_bytes < first.weight_bytes]
    if not smaller:
        return page_text(f"No other format is smaller than {name_of(first)} ({megabytes(first.weight_bytes)}).")
    best = max(smaller, key=lambda row: (row.mean_psnr_db, -row.weight_bytes))
    saved = 1 - best.weight_bytes / first.weight_bytes
    text = page_text(
        f"{name_of(best)} comes closest to {name_of(first)}: its weights need {megabytes(best.weight_bytes)} "
        f"instead of {megabytes(first.weight_bytes)}, {saved:.0%} less; {_closeness_of(best)}; {_time_of(best, first)}."
    )
    worst = min(smaller, key=lambda row: row.mean_psnr_db)
    if worst is not best and worst.mean_psnr_db < best.mean_psnr_db - 3:
        text += page_text(f" {name_of(worst)} differs most: {_closeness_of(worst)}.")
    return text


def name_of(row: Row) -> str:
    """Name a row: its label, else its storage format."""
    return row.label or row.storage


def megabytes(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _closeness_of(row: Row) -> str:
    if row.mean_psnr_db == float("inf"):
        return page_text("its images are identical")
    return f"{closeness(row.mean_psnr_db)} (PSNR {row.mean_psnr_db:.1f} dB)"


def _time_of(row: Row, first: Row) -> str:
    if not first.seconds_per_step or not row.seconds_per_step:
        return page_text("the time was not measured")
    factor = row.seconds_per_step / first.seconds_per_step
    if 0.95 <= factor <= 1.05:
        return page_text("a step takes as long")
    if factor > 1:
        return page_text(f"a step takes {factor - 1:.0%} longer")
    return page_text(f"a step takes {1 - factor:.0%} less time")
