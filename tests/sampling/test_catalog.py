import json
import subprocess
import sys

import pytest

from modules.errors import UnknownNameError
from modules.sampling.catalog import SAMPLERS, SCHEDULES, effective_schedule
from modules.sampling.names import split_legacy_name
from tests.sampling.recordings import REFERENCE


def test_samplers_are_listed_as_recorded() -> None:
    recorded = json.loads((REFERENCE / "get" / "samplers.json").read_text())
    ours = [{"name": s.name, "aliases": list(s.aliases), "options": s.options} for _, s in SAMPLERS.items()]
    assert ours == recorded


def test_schedules_are_listed_as_recorded() -> None:
    recorded = json.loads((REFERENCE / "get" / "schedulers.json").read_text())
    ours = [
        {
            "name": s.name,
            "label": s.label,
            "aliases": list(s.aliases) or None,
            "default_rho": s.default_rho,
            "need_inner_model": s.need_inner_model,
        }
        for _, s in SCHEDULES.items()
    ]
    assert ours == recorded


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("DPM++ 2M Karras", ("DPM++ 2M", "Karras")),
        ("dpm++ 2m sde exponential", ("DPM++ 2M SDE", "Exponential")),
        ("DPM2 a Karras", ("DPM2 a", "Karras")),
        ("Euler SGM Uniform", ("Euler", "SGM Uniform")),
        ("Euler SGMUniform", ("Euler", "SGM Uniform")),
        ("k_euler_a", ("Euler a", "Automatic")),
        ("DDIM", ("DDIM", "Automatic")),
    ],
)
def test_old_names_are_split(name: str, expected: tuple[str, str]) -> None:
    assert split_legacy_name(name) == expected


def test_unknown_names_list_what_exists() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'Euler'.*DPM\+\+ 2M.*LCM"):
        split_legacy_name("Eulerr")


def test_automatic_is_what_the_sampler_prefers() -> None:
    automatic = SCHEDULES.get("Automatic")
    assert effective_schedule(SAMPLERS.get("DPM++ 2M"), automatic).label == "Karras"
    assert effective_schedule(SAMPLERS.get("Euler"), automatic).label == "Automatic"
    assert effective_schedule(SAMPLERS.get("DPM++ 2M"), SCHEDULES.get("Beta")).label == "Beta"


def test_every_entry_has_a_function() -> None:
    assert all(callable(spec.function) for _, spec in SAMPLERS.items())
    assert all(callable(spec.function) for _, spec in SCHEDULES.items() if spec.target is not None)


def test_listing_names_does_not_load_torch() -> None:
    code = "import sys; import modules.sampling.catalog; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=REFERENCE.parent.parent).returncode == 0
