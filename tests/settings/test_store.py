"""config.json on disk."""

import errno
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from modules.errors import OutputError, SettingsError
from modules.settings.store import VERSION, VERSION_KEY, SettingsStore
from modules.settings.values import Settings


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "config.json"


def stored(path: Path) -> Mapping[str, object]:
    values = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(values, dict) and values.pop(VERSION_KEY) == VERSION
    return values


def test_a_missing_file_means_defaults_and_is_not_made(path: Path) -> None:
    store = SettingsStore(path)
    assert store.current == Settings()
    assert store.notices == ()
    assert not path.exists()


def test_an_update_is_there_after_a_restart(path: Path) -> None:
    SettingsStore(path).update({"jpeg_quality": 95.0, "hide_samplers": ["LMS"], "outdir_samples": "ü📂"})
    again = SettingsStore(path)
    assert again.current["jpeg_quality"] == 95
    assert again.current["hide_samplers"] == ("LMS",)
    assert again.current["outdir_samples"] == "ü📂"
    assert [entry.name for entry in path.parent.iterdir()] == ["config.json"]


def test_foreign_keys_survive_an_update(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"someone_elses": [1, {"x": null}], "tiling": true}')
    SettingsStore(path).update({"tiling": False})
    assert stored(path) == {"someone_elses": [1, {"x": None}]}


@pytest.mark.parametrize("content", [b"", b'{"a": ', b"[1, 2]", b"\xff\xfe\x00", b"[" * 100_000, b"null"])
def test_a_corrupt_file_is_kept_aside_and_said(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    store = SettingsStore(path)
    assert store.current == Settings()
    assert path.with_name("config.json.corrupt-1").read_bytes() == content
    assert not path.exists()
    (notice,) = store.notices
    assert "config.json.corrupt-1" in notice
    assert "defaults are used" in notice


def test_a_second_corrupt_file_does_not_replace_the_first(path: Path) -> None:
    path.parent.mkdir()
    for content in ("first", "second"):
        path.write_text(content)
        SettingsStore(path)
    assert path.with_name("config.json.corrupt-1").read_text() == "first"
    assert path.with_name("config.json.corrupt-2").read_text() == "second"


def test_bad_single_values_become_defaults_with_a_notice(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"jpeg_quality": "high", "tiling": true}')
    store = SettingsStore(path)
    assert store.current["tiling"] is True
    assert store.current["jpeg_quality"] == 80
    assert "jpeg_quality is 'high'" in store.notices[0]


def test_old_keys_are_migrated(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"quicksettings": "sd_vae, tiling", "sd_vae_as_default": true, "ui_reorder": "a,b"}')
    settings = SettingsStore(path).current
    assert settings["quicksettings_list"] == ("sd_vae", "tiling")
    assert settings["ui_reorder_list"] == ("a", "b")
    assert settings["sd_vae_overrides_per_model_preferences"] is False


def test_a_byte_order_mark_does_not_make_a_file_corrupt(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"tiling": true}', encoding="utf-8-sig")
    assert SettingsStore(path).current["tiling"] is True


def test_a_wrong_value_changes_nothing(path: Path) -> None:
    store = SettingsStore(path)
    with pytest.raises(SettingsError):
        store.update({"tiling": True, "jpeg_quality": -1})
    assert store.current == Settings()
    assert not path.exists()


def test_a_full_disk_keeps_the_previous_settings_and_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SettingsStore(path)
    store.update({"jpeg_quality": 90})

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"config\.json could not be saved in .*disk is full.*Free some space"):
        store.update({"jpeg_quality": 50})
    assert store.current["jpeg_quality"] == 90
    assert stored(path) == {"jpeg_quality": 90}
    assert [entry.name for entry in path.parent.iterdir()] == ["config.json"]


def test_subscribers_hear_what_changed(path: Path) -> None:
    store = SettingsStore(path)
    heard: list[tuple[object, frozenset[str]]] = []
    unsubscribe = store.subscribe(lambda settings, keys: heard.append((settings["jpeg_quality"], keys)))
    store.update({"jpeg_quality": 90, "tiling": False})
    store.update({"jpeg_quality": 90})
    unsubscribe()
    store.update({"jpeg_quality": 91})
    assert heard == [(90, frozenset({"jpeg_quality"}))]


def test_an_error_of_a_subscriber_takes_the_change_back(path: Path) -> None:
    store = SettingsStore(path)

    def refuse(settings: Settings, keys: frozenset[str]) -> None:
        raise SettingsError("No.")

    store.subscribe(refuse)
    with pytest.raises(SettingsError, match="No"):
        store.update({"tiling": True})
    assert store.current == Settings()
    assert stored(path) == {}


def test_updates_of_many_threads_are_all_kept(path: Path) -> None:
    store = SettingsStore(path)
    changes: list[dict[str, object]] = [{"outdir_samples": "a"}, {"jpeg_quality": 3}, {"tiling": True}, {"n_rows": 4}]
    threads = [threading.Thread(target=store.update, args=(change,)) for change in changes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stored(path) == {key: value for change in changes for key, value in change.items()}


def test_an_unreadable_file_is_an_error_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cannot be read"):
        SettingsStore(tmp_path / "file" / "config.json")


@pytest.mark.parametrize("text", ["\ud800", "a\0b"])
def test_what_no_file_can_hold_is_refused(path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match=r"samples_filename_pattern holds .*; remove it"):
        SettingsStore(path).update({"samples_filename_pattern": text})


def test_a_folder_in_place_of_the_file_is_kept_aside(path: Path) -> None:
    path.mkdir(parents=True)
    store = SettingsStore(path)
    assert "it is a folder. It was kept as config.json.corrupt-1" in store.notices[0]
    store.update({"jpeg_quality": 50})
    assert SettingsStore(path).current.saving.jpeg_quality == 50


def test_half_a_character_in_the_file_is_repaired(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"samples_filename_pattern": "a\\ud800b", "disabled_extensions": ["\\udfff"]}')
    store = SettingsStore(path)
    assert store.current["samples_filename_pattern"] == "a\ufffdb"
    assert "in samples_filename_pattern, disabled_extensions; they were replaced" in store.notices[0]
    json.dumps(store.current.to_stored(), ensure_ascii=False).encode()


def test_the_file_carries_its_version_and_a_newer_one_is_left_alone(path: Path) -> None:
    SettingsStore(path).update({"jpeg_quality": 55})
    assert stored(path) == {"jpeg_quality": 55} and "featherweight_config_version" in path.read_text()
    again = SettingsStore(path)
    assert again.current.foreign == {} and again.notices == ()
    newer = json.dumps({"jpeg_quality": 55, "featherweight_config_version": 2})
    path.write_text(newer)
    with pytest.raises(OutputError, match=r"config\.json was written by a newer version"):
        SettingsStore(path)
    assert path.read_text() == newer
