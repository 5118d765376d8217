"""Files of tensors that come in pieces, as the Hub lays them out: NAME-00001-of-00003.safetensors. Imports no torch."""

import re
from collections.abc import Iterable
from pathlib import Path

from modules.errors import CheckpointError

PIECE = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.[^.]+)$")
LISTED = 3


def pieces_of(path: Path) -> tuple[Path, ...]:
    """All pieces of the file that `path` is one of, in their order; `path` alone for a file in one piece.

    Raises `CheckpointError` that names those that are not there."""
    match = PIECE.match(path.name)
    if match is None:
        return (path,)
    count = int(match["count"])
    wanted = [path.with_name(_name(match, number)) for number in range(1, count + 1)]
    missing = [piece.name for piece in wanted if not piece.is_file()]
    if missing or not wanted:
        names = ", ".join(missing[:LISTED]) + (f" and {len(missing) - LISTED} more" if len(missing) > LISTED else "")
        raise CheckpointError(
            f"{path.name}: is one of {count} pieces of a model, and of the others {names or 'none'} cannot be found. "
            f"Put all of them into one folder ({path.parent.name})."
        )
    return tuple(wanted)


def first_piece(path: Path) -> Path:
    """The piece that stands for the whole file in lists; `path` itself for a file in one piece."""
    match = PIECE.match(path.name)
    return path if match is None else path.with_name(_name(match, 1))


def without_later_pieces(paths: Iterable[Path]) -> list[Path]:
    """The files with one piece of each that comes in several: the first that is there."""
    paths = list(paths)
    lowest: dict[Path, Path] = {}
    for path in paths:
        first = first_piece(path)
        lowest[first] = min(path, lowest.get(first, path))
    return [path for path in paths if lowest[first_piece(path)] == path]


def _name(match: re.Match[str], number: int) -> str:
    return f"{match['stem']}-{number:05d}-of-{match['count']}{match['suffix']}"
