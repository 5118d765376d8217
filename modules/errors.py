"""The errors that reach a user: each says what is wrong, why, and what to do.

The HTTP edge maps them to status codes in one place (`status`); the command line prints their text; the page
shows it next to the button that was pressed. Our own mistakes stay `AssertionError` and friends.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class FeatherweightError(Exception):
    """Base of every error meant for a user's eyes. `status` is the HTTP status the API answers with."""

    status = 500


class InvalidValueError(FeatherweightError):
    """A value in a request or setting is outside what is allowed; the message quotes it and the allowed ones."""

    status = 422


class UnknownNameError(FeatherweightError):
    """A name (sampler, checkpoint, setting ...) that nothing answers to."""

    status = 404

    @classmethod
    def of(cls, what: str, name: str, known: Iterable[str]) -> "UnknownNameError":
        """Build the message: the name, the nearest known one, and the whole list."""
        names = list(known)
        near = get_close_matches(name, names, n=1, cutoff=0.6)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(names) if names else "none"
        return cls(f"Unknown {what} {name!r}.{hint} Known: {listed}.")


class CheckpointError(FeatherweightError):
    """A model file that cannot be used: damaged, incomplete, or of an unknown layout."""

    status = 422


class SettingsError(FeatherweightError):
    """A setting that does not exist or does not take this value."""

    status = 422


class OutputError(FeatherweightError):
    """An image could not be written (full disk, read-only folder); the image itself is still in the result."""

    status = 507


class BusyError(FeatherweightError):
    """The server cannot take this now (the line is full, a file is locked); the same request may work later."""

    status = 503


class NumericalError(FeatherweightError):
    """NaN or infinity in a latent or image; the message names the remedy."""

    status = 500


class MemoryShortageError(FeatherweightError):
    """Memory ran out and nothing that was tried helped; the message says what was tried and what would help."""

    status = 507


class Interrupted(FeatherweightError):  # noqa: N818 - not a failure, a stop that was asked for
    """Raised inside a step when the user pressed Interrupt; carries no blame."""

    status = 409


class Skipped(FeatherweightError):  # noqa: N818 - see Interrupted
    """Raised inside a step when the user pressed Skip: this batch ends, the next one starts."""

    status = 409


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or the name of its class where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
