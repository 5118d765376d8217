"""Old keys of config.json, so that a settings file of years ago still means what it meant."""

from collections.abc import Mapping


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
