"""A sha256 that is put aside and gone on with: equal to Python's, and without a library no state."""

import hashlib
import random

import pytest

from modules.models.files import kept_sha256
from modules.models.files.kept_sha256 import KeptSha256

DATA = random.Random(7).randbytes(10_000)


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 65, 4096, 9_999, 10_000])
def test_it_goes_on_from_its_state(cut: int) -> None:
    data = memoryview(bytearray(DATA))
    begun = KeptSha256()
    begun.update(data[:cut])
    assert begun.hexdigest() == hashlib.sha256(DATA[:cut]).hexdigest()
    assert len(begun.state) == kept_sha256.STATE_BYTES, "of OpenSSL or LibreSSL, on every system that tests run on"
    resumed = KeptSha256(begun.state)
    resumed.update(data[cut:])
    assert resumed.hexdigest() == hashlib.sha256(DATA).hexdigest()


def test_without_such_a_library_it_hashes_and_has_no_state() -> None:
    assert kept_sha256.first_right([object()]) is None
    digest = KeptSha256(libraries=lambda: None)
    digest.update(memoryview(bytearray(DATA)))
    assert digest.hexdigest() == hashlib.sha256(DATA).hexdigest() and digest.state == b""
