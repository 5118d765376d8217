"""The line that weighs the loaded model."""

from dataclasses import replace

import pytest

from modules.models.files.hashing import HashProgress
from modules.processing.engine.status import ModelFacts
from modules.ui.form.scales import hashing_line, pending_line, scales_facts, scales_line

RESIDENT = ModelFacts(
    title="x",
    family="SD 1.x",
    parameters=1_066_235_307,
    stored_bytes=2_132_470_614,
    fp16_bytes=2_132_470_614,
    storage="fp16",
    device="cuda",
)


def test_a_model_that_lies_on_the_device() -> None:
    assert scales_line(RESIDENT) == "SD 1.x · 1.07 B parameters · fp16 · 2.1 GB · cuda"
    narrow = replace(RESIDENT, stored_bytes=1_100_000_000, storage="fp8 e4m3fn row")
    assert scales_line(narrow) == ("SD 1.x · 1.07 B parameters · fp8 e4m3fn row · 1.1 GB · cuda")


def test_a_model_that_is_streamed_says_how_and_what_stays() -> None:
    streamed = replace(
        RESIDENT,
        stored_bytes=52_470_614,
        streamed_bytes=2_080_000_000,
        streaming="layers are streamed from disk",
        device="cpu",
    )
    assert scales_line(streamed) == (
        "SD 1.x · 1.07 B parameters · fp16 · 2.1 GB · layers are streamed from disk, 52 MB stay · cpu"
    )


def test_threads_are_among_the_facts_where_the_cpu_computes() -> None:
    assert scales_facts(RESIDENT) == "x"
    assert scales_facts(replace(RESIDENT, threads=2)) == "x\nCPU threads: 2"


def test_a_hash_that_is_being_taken_is_shown_with_its_progress() -> None:
    assert hashing_line(None) == ""
    assert hashing_line(HashProgress("100%.safetensors", 0.344)) == "hash of 100%.safetensors 34 %"


def test_a_budget_goes_before_the_choice_of_fp8() -> None:
    mixed = replace(RESIDENT, storage="mixed, at most 4 GB")
    assert (
        pending_line(replace(RESIDENT, storage="fp16"), "Disable", False, 4.5)
        == "changes to fit 4.5 GB with the next job"
    )
    assert pending_line(mixed, "Disable", False, 4.5) == ""
    assert pending_line(mixed, "Disable", True) == "changes to 16 bits after this job"
    assert pending_line(mixed, "Enable", True) == "changes to 8 bits after this job"


@pytest.mark.parametrize(
    ("storage", "chosen", "is_busy", "line"),
    [
        ("fp8 e4m3fn row", "Disable", True, "changes to 16 bits after this job"),
        ("int8 row", "Disable", False, "changes to 16 bits with the next job"),  # as after a plot over FP8 weight
        ("fp16", "Enable", True, "changes to 8 bits after this job"),
        ("fp16", "Disable", True, ""),
        ("fp8 e4m3fn row", "Enable", True, ""),
        ("fp16", "Enable for SDXL", False, ""),  # that depends on the model
    ],
)
def test_a_choice_that_the_loaded_model_does_not_follow_yet_is_said(
    storage: str, chosen: str, is_busy: bool, line: str
) -> None:
    assert pending_line(replace(RESIDENT, storage=storage), chosen, is_busy) == line
