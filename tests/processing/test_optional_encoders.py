"""Text encoders that a family can do without: what its entry says of them fits the settings that ask for them."""

import pytest

from modules.models.families.family import ModelFamily, OptionalEncoder
from modules.models.families.registry import FAMILIES
from modules.processing.engine.precision import OPTIONAL_ENCODERS, PRECISION_KEYS, PrecisionOptions, resolve
from modules.settings.definitions import SETTINGS
from modules.settings.values import Settings
from tests.recordings import cpu_machine

FOUND = [(family, family.texts.optional) for _, family in FAMILIES.items() if family.texts.optional]


@pytest.mark.parametrize(("family", "optional"), FOUND, ids=lambda item: getattr(item, "label", ""))
def test_each_has_a_setting_that_reads_the_model_again(family: ModelFamily, optional: OptionalEncoder) -> None:
    assert optional.setting in OPTIONAL_ENCODERS <= PRECISION_KEYS
    assert SETTINGS.get(optional.setting).infotext == optional.field
    off, on = (PrecisionOptions.of(Settings().changed(**{optional.setting: options})) for options in (False, True))
    assert not resolve(off, cpu_machine(), family).with_optional
    assert resolve(on, cpu_machine(), family).with_optional
    assert resolve(on, cpu_machine(), family).load_key != resolve(off, cpu_machine(), family).load_key


def test_the_settings_are_those_of_a_family() -> None:
    assert {optional.setting for _, optional in FOUND} == OPTIONAL_ENCODERS
    options = PrecisionOptions(optional=OPTIONAL_ENCODERS)
    for _, family in FAMILIES.items():
        assert resolve(options, cpu_machine(), family).with_optional is (family.texts.optional is not None)
