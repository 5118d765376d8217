"""What config.json holds, as settings: keys of old versions get their new names, and no value stops the start."""

from collections.abc import Mapping

from modules.settings.setting import SettingValue
from modules.settings.values import Settings, as_json, exact_setting


def read_stored(stored: Mapping[str, object]) -> tuple[Settings, tuple[str, ...]]:
    """Settings from a stored file, and a notice for each value that could not be used (its default is)."""
    values: dict[str, SettingValue] = {}
    foreign: dict[str, object] = {}
    notices: list[str] = []
    for key, value in stored.items():
        setting = exact_setting(key)
        if setting is None:
            foreign[key] = value
            continue
        try:
            values[key] = setting.check(value)
        except ValueError as error:
            notices.append(f"{error}. The default {as_json(setting.default)!r} is used.")
    return Settings(values, foreign), tuple(notices)


def migrate(stored: Mapping[str, object]) -> dict[str, object]:
    """A copy of `stored` with renamed keys under their new names. A new key that is present wins over the old one."""
    values = dict(stored)
    quicksettings = values.pop("quicksettings", None)
    if isinstance(quicksettings, str):
        values.setdefault("quicksettings_list", _split_names(quicksettings))
    reorder = values.pop("ui_reorder", None)
    if isinstance(reorder, str):
        values.setdefault("ui_reorder_list", _split_names(reorder))
    vae_as_default = values.pop("sd_vae_as_default", None)
    if isinstance(vae_as_default, bool):
        # The old switch said the opposite: the chosen VAE was only a default for models without their own.
        values.setdefault("sd_vae_overrides_per_model_preferences", not vae_as_default)
    attention = values.get("cross_attention_optimization")
    if isinstance(attention, str):
        # The reference UI keeps the title: "sdp - scaled dot product".
        values["cross_attention_optimization"] = attention.split(" - ")[0]
    return values


def _split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
