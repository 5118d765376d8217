"""Whether an image depends on a setting is one fact of its row, which everything reads that asks so."""

from dataclasses import replace

import pytest

from lib_remote_workers.sdapi import settings_sent
from modules.errors import SettingsError
from modules.processing.pipeline.step_recording import pass_identity
from modules.processing.record.setting_fields import HEARD, OF_THE_RUN, SettingsCase, setting_fields
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.texts import text_options
from modules.settings.definitions import PROGRAM_SETTINGS, SETTINGS
from modules.settings.setting import Section, Setting, SettingType
from modules.settings.values import Settings

TOY = Setting(
    key="toy_warmth",
    label="Warmth",
    default=0,
    type=SettingType.INT,
    section=Section(id="toy", title="Toy"),
    infotext="Warmth",
)


def seen(monkeypatch: pytest.MonkeyPatch, row: Setting) -> dict[str, bool]:
    """Where a changed setting of this row has an effect on what is known of an image."""
    monkeypatch.setitem(SETTINGS._entries, row.key, row)
    monkeypatch.setitem(SETTINGS._lookup, row.key, row.key)
    plain = GenerationRequest(prompt="a cat", settings=Settings())
    changed = replace(plain, settings=Settings().with_changes({row.key: 3}))
    return {
        "infotext": setting_fields(SettingsCase(changed, ("a cat", "")), (*PROGRAM_SETTINGS, row)) == {"Warmth": 3},
        "resume identity": pass_identity(plain, (), (), ()) != pass_identity(changed, (), (), ()),
        "remote workers": settings_sent(changed) == {row.key: 3},
        "cached encodings": text_options(plain.settings) != text_options(changed.settings),
    }


@pytest.mark.parametrize(
    ("affects_image", "affects_encoding"), [(False, False), (True, False), (True, True)], ids=["no", "image", "both"]
)
def test_one_fact_of_the_row_is_read_everywhere(
    monkeypatch: pytest.MonkeyPatch, affects_image: bool, affects_encoding: bool
) -> None:
    row = replace(TOY, affects_image=affects_image, affects_encoding=affects_encoding)
    assert seen(monkeypatch, row) == {
        "infotext": affects_image,
        "resume identity": affects_image,
        "remote workers": affects_image,
        "cached encodings": affects_encoding,
    }


def test_a_row_that_affects_encodings_affects_images() -> None:
    with pytest.raises(ValueError, match="affects what prompts are encoded to, but no image"):
        replace(TOY, affects_encoding=True)
    assert SETTINGS.get("emphasis").affects_encoding and SETTINGS.get("emphasis").affects_image


def test_every_setting_that_images_record_affects_them() -> None:
    assert [row.key for row in PROGRAM_SETTINGS if row.infotext and not row.affects_image] == []
    assert {*HEARD, *OF_THE_RUN} <= {row.key for row in PROGRAM_SETTINGS if row.infotext}


def test_a_setting_is_recorded_where_it_is_heard() -> None:
    settings = Settings().changed(s_churn=5.0, uni_pc_order=2, sigma_max=9.0, img2img_extra_noise=0.1, eta_ddim=0.5)

    def fields(sampler: str, scheduler: str = "Karras", hires: HiresRequest | None = None) -> dict[str, object]:
        request = GenerationRequest(sampler=sampler, scheduler=scheduler, hires=hires, settings=settings)
        return setting_fields(SettingsCase(request, ("", "")))

    assert fields("Euler") == {"Sigma churn": 5.0, "Schedule max sigma": 9.0}
    beta = {"Beta schedule alpha": 0.6, "Beta schedule beta": 0.6}
    assert fields("Euler", "Beta") == {"Sigma churn": 5.0, "Schedule max sigma": 9.0, **beta}
    assert fields("DDIM") == {"Eta DDIM": 0.5} and fields("UniPC") == {"UniPC order": 2}
    assert fields("DDIM", hires=HiresRequest()) == {"Extra noise": 0.1, "Eta DDIM": 0.5}


def test_settings_of_pages_stay_here() -> None:
    changes = {"img2img_editor_height": 500, "hide_samplers": ["DDIM"], "stream_weights": "Blocks"}
    request = GenerationRequest(settings=Settings().with_changes(changes))
    assert settings_sent(request) == {}
    with pytest.raises(SettingsError):
        Settings().with_changes({"toy_warmth": 1})
