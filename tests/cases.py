"""Many cheap cases as one test: a test of its own costs some milliseconds in every process, such a case less."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

MAX_SHOWN = 10


def for_each(
    names: str | tuple[str, ...], cases: Iterable[Any], ids: Callable[[Any], object] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for every case, as `pytest.mark.parametrize` does, but as one test, which lists the cases that failed.

    Fixtures are made once for all cases, and a skip skips them all.
    """
    every = list(cases)
    assert every, "a test of no cases proves nothing"
    words = (names,) if isinstance(names, str) else names

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in words]

        @functools.wraps(test)
        def whole(**fixtures: Any) -> None:
            failed: list[tuple[object, Exception]] = []
            for case in every:
                values = (case,) if isinstance(names, str) else case
                try:
                    test(**fixtures, **dict(zip(words, values, strict=True)))
                except Exception as error:
                    failed.append((ids(case) if ids else case, error))
            if failed:
                shown = "\n".join(f"{case!r}: {type(error).__name__}: {error}" for case, error in failed[:MAX_SHOWN])
                raise AssertionError(f"{len(failed)} of {len(every)} cases failed:\n{shown}") from failed[0][1]

        whole.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined] # what pytest reads
        return whole

    return decorate
