"""Settings are read as attributes that mypy knows; keys in strings are for the edges."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.settings.definitions import SETTINGS, GroupAttribute, SettingsGroups
from modules.settings.group import SettingsGroup, choice, flag, many, number, whole
from modules.settings.sections.samplers import SamplerSettings
from modules.settings.setting import Section
from modules.settings.values import Settings
from tests.cases import for_each

ROOT = Path(__file__).parents[2]
ROOMS = sorted(
    path for path in (*(ROOT / "modules").iterdir(), ROOT / "extensions-builtin", ROOT / "benchmarks") if path.is_dir()
)
HOLDERS = ("settings", "current")
"""How variables and attributes that hold settings are named."""


class TintSettings(SettingsGroup):
    """A group as an extension writes it."""

    section = Section(id="tints", title="Tints")

    tint_on = flag("Tints", True)
    tint_count = whole("Number of tints", 3, minimum=1)
    tint_strength = number("Strength", 1)
    tint_color = choice("Color", None, ("red", "blue"), optional=True)
    tint_names = many("Names", ("a",))


def test_every_setting_of_a_group_reads_as_the_value_of_its_key() -> None:
    settings = Settings().changed(eta_ddim=0.5, CLIP_stop_at_last_layers=2, outdir_samples="out")
    for name, entry in vars(SettingsGroups).items():
        if isinstance(entry, GroupAttribute):
            for setting in entry.group.definitions():
                value = getattr(getattr(settings, name), setting.key)
                assert value == (settings[setting.key] or value), setting.key
    assert settings.sampler.eta_ddim == 0.5
    assert settings.stable_diffusion.CLIP_stop_at_last_layers == 2
    assert settings.saving_paths.outdir_samples == "out"


def test_a_group_reads_values_in_its_own_types() -> None:
    group = TintSettings({"tint_on": False, "tint_count": 2, "tint_strength": 1, "tint_color": None, "tint_names": ()})
    assert (group.tint_on, group.tint_count, group.tint_color, group.tint_names) == (False, 2, "", ())
    assert isinstance(group.tint_strength, float)


def test_a_class_gives_the_definition_of_its_setting() -> None:
    assert [setting.key for setting in TintSettings.definitions()] == list(vars(TintSettings))[3:8]
    assert TintSettings.tint_count.setting.minimum == 1
    assert TintSettings.tint_count.key == "tint_count"
    assert SamplerSettings.eta_ddim.setting is SETTINGS.get("eta_ddim")
    assert SamplerSettings.eta_ddim.of(Settings()) == 0.0


def test_settings_do_not_change() -> None:
    with pytest.raises(AttributeError, match=r"Settings do not change; eta_ddim"):
        Settings().sampler.eta_ddim = 1.0  # type: ignore[assignment]


def test_a_default_that_the_setting_refuses_is_found_when_the_class_is_made() -> None:
    with pytest.raises((ValueError, RuntimeError)) as caught:
        type("Bad", (SettingsGroup,), {"section": TintSettings.section, "count": whole("Count", 0, minimum=1)})
    assert "count is 0, but takes a whole number of at least 1" in str(caught.value.__cause__ or caught.value)


def _reads_by_key(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and key of `settings["key"]`, `settings.get("key")` and the like, where the key is a known one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            holder, key = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
            holder, key = node.func.value, node.args[0]
        else:
            continue
        name = holder.attr if isinstance(holder, ast.Attribute) else holder.id if isinstance(holder, ast.Name) else ""
        known = isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value in SETTINGS
        if known and name in HOLDERS:
            yield node.lineno, ast.unparse(key)


@for_each("room", ROOMS, ids=lambda room: room.name)
def test_no_setting_is_read_by_a_key_in_a_string(room: Path) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {key}"
        for path in sorted(room.rglob("*.py"))
        for line, key in _reads_by_key(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []
