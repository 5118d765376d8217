"""The registry against the recorded options of the reference UI."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from modules.settings.definitions import DIRECTORY_KEYS, SETTINGS, SettingType, visible_sections
from modules.settings.group import choice, color, flag, many, number, text, whole
from modules.settings.setting import Section, Setting
from modules.settings.values import Settings
from tests.cases import for_each
from tests.extensions import built_in

REFERENCE = Path(__file__).parents[1] / "reference"
OPTIONS: dict[str, Any] = json.loads((REFERENCE / "get" / "options.json").read_text())
RECORDED_OTHERWISE = {"samples_save", "grid_save", "sd_model_checkpoint", "sd_checkpoint_hash"}
"""Not at their defaults where the recordings were made."""

OWN_KEYS = frozenset(
    {
        *("fp8_format", "fp8_skip", "fp8_text_encoder", "compute_dtype", "compute_mode", "lora_mode"),
        *("vae_tile_size", "queue_limit", "queue_starts_paused", "queue_retries", "queue_groups_models"),
        *("queue_kept_jobs", "queue_done_command", "ui_density", "ui_layout", "enqueue_always"),
        *("worker_interrupt_grace", "stealth_pnginfo"),
        *("queue_resume_after", "queue_resume_every", "queue_resume_megabytes"),
        "split_feed_forward",
        *("sd_checkpoints_ram_gb", "sd_checkpoints_vram_gb", "krea2_references"),
        *("forge_additional_modules", "weights_budget_gb", "prompt_cache_mb"),
        *("stream_weights", "stream_keep_gb", "offload_quota_gb", "forecast_strength", "step_cache_threshold"),
        *("vram_headroom_gb", "torch_compile", "cuda_graphs", "decoded_keep_gb"),
    }
)
"""The keys that the reference UI does not have."""

EXTENSIONS_OWN = ("tac_", "dynamic_prompts_", "ad_", "control_net_")
"""How the keys of built-in extensions begin that the reference UI does not come with."""

OTHER_DEFAULTS = {"api_enable_requests": False}
"""Images are fetched from URLs only where somebody has switched it on, which the API cannot."""

SECTION = Section(id="x", title="X")


built_in()  # the settings of LoRA are an extension's


def test_every_key_of_the_reference_is_known_and_no_other() -> None:
    extensions = {key for key in SETTINGS if key.startswith(EXTENSIONS_OWN)}
    assert set(SETTINGS) - OWN_KEYS - extensions == set(OPTIONS)
    assert set(SETTINGS) >= OWN_KEYS


@for_each("key", sorted(OPTIONS))
def test_default_is_the_recorded_one_and_the_recorded_value_is_accepted(key: str) -> None:
    setting = SETTINGS.get(key)
    assert setting.key == key
    checked = setting.check(OPTIONS[key])
    if key not in {*RECORDED_OTHERWISE, *OTHER_DEFAULTS} and setting.default != "":
        assert checked == setting.default


def test_the_whole_recorded_body_is_accepted_and_comes_back() -> None:
    recorded = {**OPTIONS, **OTHER_DEFAULTS}
    settings = Settings().with_changes(recorded, from_api=True)
    assert {key: settings.to_json()[key] for key in OPTIONS} == recorded
    assert settings.with_changes(settings.to_json(), from_api=True) == settings


def test_infotext_names_are_unique() -> None:
    names = [name for _, setting in SETTINGS.items() for name in (setting.infotext, *setting.infotext_aliases) if name]
    assert len(names) == len(set(names))


def test_hidden_settings_are_not_on_the_page_and_visible_ones_say_what_they_are() -> None:
    shown = {setting.key for rows in visible_sections().values() for setting in rows}
    assert "hypertile_explanation" not in shown
    assert {"samples_format", "sd_model_checkpoint", "eta_ancestral", "live_previews_enable"} <= shown
    assert all(SETTINGS.get(key).label != key for key in shown - {"rho"})


def test_sections_of_the_page_have_unique_titles() -> None:
    titles = [section.title for section in visible_sections()]
    assert len(titles) == len(set(titles))


def test_directory_keys_cover_all_output_folders() -> None:
    assert {"outdir_samples", "outdir_txt2img_grids", "directories_filename_pattern"} <= DIRECTORY_KEYS


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        (flag("F", True).define("f", SECTION), 1, "true or false"),
        (whole("W", 1, minimum=0, maximum=9).define("w", SECTION), 1.5, "a whole number from 0 to 9"),
        (whole("W", 1, minimum=0, maximum=9).define("w", SECTION), 10, "a whole number from 0 to 9"),
        (whole("W", 1, minimum=0).define("w", SECTION), -1, "a whole number of at least 0"),
        (whole("W", 1).define("w", SECTION), True, "a whole number"),
        (number("N", 1.0).define("n", SECTION), float("nan"), "a number"),
        (number("N", 1.0).define("n", SECTION), "1", "a number"),
        (text("T", "").define("t", SECTION), None, "a text"),
        (choice("C", "png", ("png", "webp")).define("c", SECTION), "webb", "did you mean 'webp'"),
        (many("M", ()).define("m", SECTION), "a", "a list of texts"),
        (many("M", (), ("a", "b")).define("m", SECTION), ["c"], "a list of 'a', 'b'"),
        (color("K", "#ffffff").define("k", SECTION), "white", "a color"),
        (color("K", "#ffffff").define("k", SECTION), "#fffffff", "a color"),
    ],
)
def test_bad_values_are_refused_with_what_is_allowed(setting: Setting, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"{setting.key} is .*{message}"):
        setting.check(value)


def test_numbers_are_interchangeable() -> None:
    rounded = whole("W", 1).define("w", SECTION).check(80.0)
    assert rounded == 80
    assert isinstance(rounded, int)


@pytest.mark.parametrize(("text", "shown"), [("10", "10"), ("10.0", "10.0"), ("1e3", "1000.0")])
def test_numbers_stay_as_they_were_given(text: str, shown: str) -> None:
    setting = number("N", 1.0).define("n", SECTION)
    assert str(setting.from_text(text)) == shown
    assert str(setting.check(json.loads(text))) == shown


@pytest.mark.parametrize(
    ("setting", "written", "value"),
    [
        (flag("F", True).define("f", SECTION), "False", False),
        (whole("W", 1).define("w", SECTION), "31337", 31337),
        (number("N", 1.0).define("n", SECTION), "0.5", 0.5),
        (text("T", "").define("t", SECTION), "a", "a"),
    ],
)
def test_values_are_read_from_infotext(setting: Setting, written: str, value: object) -> None:
    assert setting.from_text(written) == value


@pytest.mark.parametrize(
    ("setting", "written"), [(flag("F", True).define("f", SECTION), "maybe"), (whole("W", 1).define("w", SECTION), "x")]
)
def test_unreadable_infotext_values_are_refused(setting: Setting, written: str) -> None:
    with pytest.raises(ValueError, match=r"(f|w) is '(x|maybe)', but takes"):
        setting.from_text(written)


def test_a_default_of_the_wrong_kind_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="w is 'x', but takes a whole number"):
        Setting(key="w", label="W", default="x", type=SettingType.INT, section=SECTION)


def test_every_shown_setting_is_named_where_it_has_its_effect() -> None:
    root = Path(__file__).parents[2]
    files = [path for suffix in ("py", "js") for path in (root / "modules").rglob(f"*.{suffix}")]
    files += [*(root / "extensions-builtin").rglob("*.py"), root / "webui.py"]
    places = [path for path in files if "settings" not in path.relative_to(root).parts]
    words = set(re.findall(r"[.\"'](\w+)", "\n".join(path.read_text(encoding="utf-8") for path in places)))
    shown = {setting.key for rows in visible_sections().values() for setting in rows}
    assert sorted(key for key in shown if key not in words) == []
