"""A sha256 whose state can be put on the disk and gone on with later by another process.

Python's own hashes cannot be pickled. The library that they are made with has the older interface too, whose state is
a block of memory without pointers (`SHA256_CTX` of OpenSSL and LibreSSL), which is copied. It is called by its
functions' names, and believed only after it has given the same as Python's on an example that was interrupted. Where
there is no such library, or it is built into Python, there is no state to keep.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

STATE_BYTES = 112  # 8 words, a length of 64 bits, 64 bytes of a block, how many of them there are, the hash's length
EXAMPLE = bytes(range(251)) * 3


class KeptSha256:
    """As `hashlib.sha256()`, with its `state`."""

    def __init__(self, state: bytes = b"", libraries: Callable[[], Any] | None = None) -> None:
        """Goes on from a `state` of an earlier one; b"": from the beginning. `libraries` gives what hashes, or None."""
        self._library = (libraries or own_library)()
        assert not state or (self._library is not None and len(state) == STATE_BYTES), "no state of this machine's"
        if self._library is None:
            self._plain = hashlib.sha256()
            return
        self._context = ctypes.create_string_buffer(state, STATE_BYTES)
        if not state:
            self._library.SHA256_Init(self._context)

    @property
    def state(self) -> bytes:
        """What another one goes on from; b"": none can be had."""
        return b"" if self._library is None else self._context.raw

    def update(self, data: memoryview) -> None:
        """The next bytes, writable ones: their address is taken."""
        if self._library is None:
            self._plain.update(data)
        elif data.nbytes:
            self._library.SHA256_Update(self._context, _address(data), data.nbytes)

    def hexdigest(self) -> str:
        """The hash of all so far; more may come."""
        if self._library is None:
            return self._plain.hexdigest()
        context, digest = ctypes.create_string_buffer(self._context.raw, STATE_BYTES), ctypes.create_string_buffer(32)
        self._library.SHA256_Final(digest, context)
        return digest.raw.hex()


def _address(data: memoryview) -> Any:
    return (ctypes.c_char * data.nbytes).from_buffer(data)


@cache
def own_library() -> Any:
    """The library that hashes, checked; None where there is none."""
    return first_right(_candidates())


def first_right(candidates: Iterable[Any]) -> Any:
    """The first that gives Python's hash on an example, after an interruption; None where none does."""
    return next((library for library in candidates if _is_right(library)), None)


def _candidates() -> Iterator[Any]:
    try:
        import _hashlib

        own = getattr(_hashlib, "__file__", "")
    except ImportError:
        own = ""
    beside = sorted(Path(own).parent.glob("libcrypto*.dll")) if own else []  # Windows looks into no dependencies
    for name in (own, *map(str, beside), ctypes.util.find_library("crypto") or ""):
        try:
            if name:
                yield ctypes.CDLL(name)
        except OSError:
            continue


def _is_right(library: Any) -> bool:
    try:
        for function in (library.SHA256_Init, library.SHA256_Update, library.SHA256_Final):
            function.restype = ctypes.c_int
        library.SHA256_Init.argtypes = [ctypes.c_char_p]
        library.SHA256_Update.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]
        library.SHA256_Final.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    except AttributeError:
        return False
    digest, begun = ctypes.create_string_buffer(32), ctypes.create_string_buffer(2 * STATE_BYTES)
    example = bytearray(EXAMPLE)
    library.SHA256_Init(begun)
    library.SHA256_Update(begun, _address(memoryview(example)[:300]), 300)
    if any(begun.raw[STATE_BYTES:]):
        return False  # its state is another one
    resumed = ctypes.create_string_buffer(begun.raw[:STATE_BYTES], STATE_BYTES)
    library.SHA256_Update(resumed, _address(memoryview(example)[300:]), len(example) - 300)
    library.SHA256_Final(digest, resumed)
    return digest.raw == hashlib.sha256(EXAMPLE).digest()
