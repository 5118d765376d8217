"""What the tests that make pictures share."""

from collections.abc import Iterator
from functools import cache

import pytest

from modules.prompting import tokens, vocabulary


@pytest.fixture(scope="package", autouse=True)
def vocabulary_is_read_once() -> Iterator[None]:
    """Reading CLIP's vocabulary takes as long as a step of a tiny model, and each model that is loaded does it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "read_package_vocabulary", cache(vocabulary.read_package_vocabulary))
        yield
