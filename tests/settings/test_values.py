"""Settings as values."""

import pytest

from modules.errors import SettingsError
from modules.settings.store import read_stored
from modules.settings.values import Settings


def test_missing_keys_give_defaults() -> None:
    settings = Settings()
    assert settings["samples_format"] == "png"
    assert settings.saving.samples_save is True
    assert settings.saving.jpeg_quality == 80
    assert settings.sampler.eta_ancestral == 1.0
    assert settings.stable_diffusion.sd_model_checkpoint == ""
    assert settings.interface.quicksettings_list == ("sd_model_checkpoint",)


def test_a_change_returns_new_settings_and_leaves_the_old_ones() -> None:
    before = Settings()
    after = before.changed(jpeg_quality=95, samples_format="webp")
    assert before["jpeg_quality"] == 80
    assert after["jpeg_quality"] == 95
    assert after.differences() == {"jpeg_quality": 95, "samples_format": "webp"}
    assert Settings().with_changes(after.differences()) == after


def test_a_value_set_back_is_no_difference() -> None:
    assert Settings().changed(jpeg_quality=95).changed(jpeg_quality=80) == Settings()


def test_all_bad_keys_are_named_in_one_error_and_nothing_changes() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings().with_changes({"jpeg_qualty": 90, "n_rows": 99, "samples_save": "yes", "tiling": True})
    message = str(caught.value)
    assert "'jpeg_qualty'; did you mean jpeg_quality" in message
    assert "n_rows is 99, but takes a whole number from -1 to 16" in message
    assert "samples_save is 'yes'" in message
    assert "tiling" not in message
    assert caught.value.status == 422


def test_keys_do_not_ignore_case() -> None:
    with pytest.raises(SettingsError, match=r"did you mean tiling\?$"):
        Settings().with_changes({"Tiling": True})


def test_unknown_keys_behave_like_those_of_a_mapping() -> None:
    settings = Settings()
    assert "no_such_key" not in settings
    assert settings.get("no_such_key") is None
    with pytest.raises(SettingsError, match=r"^There is no setting 'no_such_key'"):
        settings["no_such_key"]


def test_the_api_may_send_back_but_not_change_guarded_keys() -> None:
    settings = Settings()
    assert settings.with_changes({"api_enable_requests": False}, from_api=True) == settings
    with pytest.raises(SettingsError, match="api_enable_requests cannot be changed through the API"):
        settings.with_changes({"api_enable_requests": True}, from_api=True)
    assert settings.with_changes({"api_enable_requests": True})["api_enable_requests"] is True


def test_locked_keys_only_take_the_value_they_have() -> None:
    with pytest.raises(SettingsError, match="outdir_samples is locked"):
        Settings().with_changes({"outdir_samples": "/etc"}, locked={"outdir_samples"})
    assert Settings().with_changes({"outdir_samples": ""}, locked={"outdir_samples"}) == Settings()


def test_stored_values_keep_foreign_keys_and_report_bad_ones() -> None:
    settings, notices = read_stored({"jpeg_quality": 200, "tiling": True, "my_extension": {"a": [1]}})
    assert settings["jpeg_quality"] == 80
    assert settings["tiling"] is True
    assert settings.to_stored() == {"tiling": True, "my_extension": {"a": [1]}}
    assert len(notices) == 1
    assert "jpeg_quality is 200" in notices[0]
    assert "default 80 is used" in notices[0]


def test_foreign_keys_survive_changes_and_may_be_sent_back() -> None:
    settings = Settings(foreign={"other": 1}).with_changes({"other": 1, "tiling": True})
    assert settings.foreign == {"other": 1}
    assert Settings(foreign={"other": 1}) != Settings()


def test_lists_cannot_be_changed_from_outside() -> None:
    names = ["a"]
    settings = Settings().changed(quicksettings_list=names)
    names.append("b")
    assert settings["quicksettings_list"] == ("a",)
    assert settings.to_json()["quicksettings_list"] == ["a"]
