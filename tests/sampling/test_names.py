"""Names of samplers from elsewhere, as a sampler and a schedule type that are here."""

from argparse import ArgumentParser

import pytest

from modules.cli.parameters import add_parameter_options, request_values
from modules.errors import InvalidValueError
from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.sampling.names import (
    ELSEWHERE,
    SCHEDULES_ELSEWHERE,
    is_usual,
    schedule_before_1_9,
    schedule_named,
    split_legacy_name,
    split_names,
)
from modules.scripts.axes import AXES
from tests.cases import for_each

COMBINED = {
    **{"DPM++ 2M Karras": ("DPM++ 2M", "Karras"), "DPM++ SDE Karras": ("DPM++ SDE", "Karras")},
    **{"DPM++ 2M SDE Exponential": ("DPM++ 2M SDE", "Exponential"), "DPM++ 2M SDE Karras": ("DPM++ 2M SDE", "Karras")},
    **{"DPM++ 2M SDE Heun": ("DPM++ 2M SDE Heun", "Automatic"), "LMS Karras": ("LMS", "Karras")},
    **{"DPM++ 2M SDE Heun Karras": ("DPM++ 2M SDE Heun", "Karras"), "DPM2 Karras": ("DPM2", "Karras")},
    **{"DPM++ 2M SDE Heun Exponential": ("DPM++ 2M SDE Heun", "Exponential"), "DPM2 a Karras": ("DPM2 a", "Karras")},
    **{"DPM++ 3M SDE Karras": ("DPM++ 3M SDE", "Karras"), "DPM++ 2S a Karras": ("DPM++ 2S a", "Karras")},
    **{"DPM++ 3M SDE Exponential": ("DPM++ 3M SDE", "Exponential"), "Restart": ("Restart", "Automatic")},
    **{"k_dpmpp_2m_ka": ("DPM++ 2M", "Karras"), "k_dpmpp_2s_a_ka": ("DPM++ 2S a", "Karras")},
    **{"k_dpm_2_a_ka": ("DPM2 a", "Karras"), "k_lms_ka": ("LMS", "Karras"), "k_dpmpp_sde_ka": ("DPM++ SDE", "Karras")},
    **{"k_dpmpp_2m_sde_exp": ("DPM++ 2M SDE", "Exponential"), "k_euler_ancestral": ("Euler a", "Automatic")},
    **{"dpmpp_2m_sde_gpu": ("DPM++ 2M SDE", "Automatic"), "dpmpp_2m_sde_k": ("DPM++ 2M SDE", "Karras")},
    **{"Euler A Trailing": ("Euler a", "SGM Uniform"), "DPM++ 2M AYS": ("DPM++ 2M", "Align Your Steps")},
}


@for_each("name", COMBINED)
def test_combined_names_and_those_of_other_programs_are_split(name: str) -> None:
    assert split_legacy_name(name) == COMBINED[name]
    assert split_legacy_name(name.upper()) == COMBINED[name]


def test_what_the_tables_name_is_here() -> None:
    assert set(ELSEWHERE.values()) <= set(SAMPLERS)
    assert all(label in SCHEDULES for label in SCHEDULES_ELSEWHERE.values())
    assert not any(name in SAMPLERS for name in ELSEWHERE), "an alias needs no second entry"


def test_values_of_a_request_are_split_and_the_name_wins() -> None:
    given = {"sampler": "DPM++ 2M Karras", "scheduler": "Beta", "steps": 3}
    assert split_names(given) == {"sampler": "DPM++ 2M", "scheduler": "Karras", "steps": 3}
    for same in ({"sampler": "Euler", "scheduler": "Beta"}, {"sampler": "nothing Karras"}, {"sampler": None}, {}):
        assert split_names(same) == same


def test_a_plain_name_meant_the_models_own_schedule_once() -> None:
    assert [schedule_before_1_9(name) for name in ("DPM++ 2M", "Euler a", "Restart")] == [
        *("Uniform", "Automatic", "Automatic")
    ]
    assert is_usual("DPM++ 2M", "Karras") and is_usual("Euler", "Automatic") and not is_usual("Euler", "Karras")
    assert (schedule_named("ddim_uniform"), schedule_named("sgm_uniform"), schedule_named("x")) == (
        *("DDIM", "SGM Uniform"),
        None,
    )


def test_a_grid_takes_old_names() -> None:
    axis = AXES.get("Sampler")
    assert axis.values("Euler a, DPM++ 2M Karras, k_dpmpp_sde_ka") == ["Euler a", "DPM++ 2M Karras", "DPM++ SDE Karras"]
    with pytest.raises(InvalidValueError, match="'Eulerr' is none of"):
        axis.values("Eulerr")


def test_the_command_line_takes_old_names() -> None:
    parser = ArgumentParser()
    add_parameter_options(parser)
    values = request_values(parser.parse_args(["--prompt", "x", "--sampler", "DPM++ SDE Karras"]))
    assert (values["sampler"], values["scheduler"]) == ("DPM++ SDE", "Karras")
