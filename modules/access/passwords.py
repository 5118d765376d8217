"""Passwords as they are kept: scrypt (RFC 7914), with salt and parameters in each entry, so that they can change."""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import unicodedata
from dataclasses import dataclass
from functools import cache

from modules.errors import InvalidValueError

MIN_CHARACTERS = 8
MAX_CHARACTERS = 1024
SALT_BYTES, HASH_BYTES = 16, 32
MAX_LOG2_N, MAX_R, MAX_P = 20, 32, 16  # 4 GB at r=32: what an edited file may not exceed is memory for one login
MAX_MEMORY_BYTES = 1 << 30
_ENTRY = re.compile(r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]{8,})\$([A-Za-z0-9+/]{8,})")


@dataclass(frozen=True)
class Cost:
    """Price of one check: 128 * 2**log2_n * r bytes of memory, p times over."""

    log2_n: int = 15
    r: int = 8
    p: int = 3

    def __post_init__(self) -> None:
        in_range = 1 <= self.log2_n <= MAX_LOG2_N and 1 <= self.r <= MAX_R and 1 <= self.p <= MAX_P
        if not in_range or self.bytes > MAX_MEMORY_BYTES:
            raise InvalidValueError(
                f"scrypt with ln={self.log2_n}, r={self.r}, p={self.p} is not used here: ln is 1 to {MAX_LOG2_N}, r 1 "
                f"to {MAX_R}, p 1 to {MAX_P}, together at most 1 GB of memory. Set the password again."
            )

    @property
    def bytes(self) -> int:
        return 128 * (1 << self.log2_n) * self.r


COST = Cost()
"""32 MiB and three passes: OWASP's password storage cheat sheet (2024)."""


def hash_password(password: str, cost: Cost = COST) -> str:
    """An entry for a password: `$scrypt$ln=15,r=8,p=3$SALT$HASH`, the last two in base64 without padding. Raises
    `InvalidValueError` for one that is too short or too long."""
    check_password(password)
    salt = secrets.token_bytes(SALT_BYTES)
    derived = _derived(password, salt, cost)
    return f"$scrypt$ln={cost.log2_n},r={cost.r},p={cost.p}${_text(salt)}${_text(derived)}"


def check_password(password: str) -> None:
    """Raise `InvalidValueError` for a password that is too short or too long."""
    if not MIN_CHARACTERS <= len(password) <= MAX_CHARACTERS:
        raise InvalidValueError(
            f"The password has {len(password)} characters; {MIN_CHARACTERS} to {MAX_CHARACTERS} are allowed. A few "
            "words in a row make a good one."
        )


def is_password(password: str, entry: str) -> bool:
    """Whether an entry is of this password; takes the same time for every wrong one. Raises `InvalidValueError` for an
    entry that is none."""
    cost, salt, wanted = _parts(entry)
    if len(password) > MAX_CHARACTERS:
        return False
    return hmac.compare_digest(_derived(password, salt, cost, len(wanted)), wanted)


def check_entry(entry: str) -> None:
    """Raise `InvalidValueError` for a text that is no entry."""
    _parts(entry)


def waste_time(password: str) -> None:
    """Compute as much as a check does: the name was not known, which nobody may find out with a clock."""
    is_password(password[:MAX_CHARACTERS], _entry_of_nobody())


@cache
def _entry_of_nobody() -> str:
    return hash_password(secrets.token_urlsafe(24))


def _parts(entry: str) -> tuple[Cost, bytes, bytes]:
    found = _ENTRY.fullmatch(entry)
    if found is None:
        raise InvalidValueError(
            "The entry is no scrypt hash ($scrypt$ln=15,r=8,p=3$SALT$HASH). Set the password again."
        )
    try:
        salt, wanted = (base64.b64decode(text + "=" * (-len(text) % 4), validate=True) for text in found.group(4, 5))
    except binascii.Error as error:
        raise InvalidValueError(f"The entry holds no base64 ({error}). Set the password again.") from error
    return Cost(int(found[1]), int(found[2]), int(found[3])), salt, wanted


def _derived(password: str, salt: bytes, cost: Cost, size: int = HASH_BYTES) -> bytes:
    # The same letters may arrive composed or not, as the keyboard and the system have it.
    text = unicodedata.normalize("NFKC", password).encode("utf-8", "surrogatepass")
    room = cost.bytes + 128 * cost.r * (cost.p + 2) + (1 << 20)
    return hashlib.scrypt(text, salt=salt, n=2**cost.log2_n, r=cost.r, p=cost.p, maxmem=room, dklen=size)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")
