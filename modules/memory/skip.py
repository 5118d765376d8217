"""Which layers stay as they are: by pattern, class, name, or a function of one's own."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from modules.errors import InvalidValueError


@dataclass(frozen=True)
class SkipRules:
    """A layer is skipped if any rule says so. Names are dotted paths from the module that is being stored.

    `patterns` are regular expressions searched anywhere in the name; `names` are full names, of a layer or of a
    module above it; `predicate` is called with name and layer. A single string instead of a tuple of patterns is
    taken as one pattern. Raises `InvalidValueError` for a pattern that is no regular expression.
    """

    patterns: tuple[str, ...] | str = ()
    classes: tuple[type[nn.Module], ...] = ()
    names: frozenset[str] = frozenset()
    predicate: Callable[[str, nn.Module], bool] | None = None
    _compiled: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        patterns = (self.patterns,) if isinstance(self.patterns, str) else tuple(self.patterns)
        object.__setattr__(self, "patterns", patterns)
        object.__setattr__(self, "_compiled", tuple(compile_pattern(pattern) for pattern in patterns))

    @property
    def texts(self) -> tuple[str, ...]:
        """The patterns."""
        return tuple(pattern.pattern for pattern in self._compiled)

    def skips(self, name: str, layer: nn.Module) -> bool:
        """Whether this layer stays as it is."""
        return (
            isinstance(layer, self.classes)
            or any(name == skipped or name.startswith(f"{skipped}.") for skipped in self.names)
            or any(pattern.search(name) for pattern in self._compiled)
            or (self.predicate is not None and self.predicate(name, layer))
        )


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A regular expression; raises `InvalidValueError` that says what is wrong with it."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidValueError(
            f"The skip pattern {pattern!r} is no regular expression: {error}. Example: ^conv_(in|out)$"
        ) from error
