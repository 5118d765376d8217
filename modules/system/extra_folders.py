"""`model-folders.json` in the data folder: folders of models that lie elsewhere and are read beside our own.

A JSON object: name of the folder below models/ (or `embeddings`) -> list of full paths. The command `import` writes
it, people may too.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from modules.system.bounded import read_json_file
from modules.system.texts import page_text

FILE = "model-folders.json"

Folders = Mapping[str, tuple[Path, ...]]


def read_extra_folders(file: Path) -> tuple[Folders, tuple[str, ...]]:
    """The folders by kind, and what is wrong with the file; nothing is raised."""
    try:
        read = read_json_file(file)
    except FileNotFoundError:
        return {}, ()
    except (OSError, ValueError) as error:
        return {}, (f"{file.name} was left out: {error}. Correct or delete {file}.",)
    if not isinstance(read, dict):
        return {}, (f"{file.name} was left out: it is no JSON object. Correct or delete {file}.",)
    folders: dict[str, tuple[Path, ...]] = {}
    notices = []
    for kind, listed in read.items():
        if not isinstance(listed, list) or not all(map(_is_full_path, listed)):
            notices.append(page_text(f"{file.name}: {kind} was left out: it is no list of full paths. Correct {file}."))
            continue
        above = [one for one in listed if file.resolve().is_relative_to(Path(one).resolve())]
        notices += [page_text(f"{file.name}: {one} was left out of {kind}: it holds the data folder.") for one in above]
        folders[kind] = tuple(Path(one) for one in listed if one not in above)
    return folders, tuple(notices)


def _is_full_path(value: object) -> bool:
    return isinstance(value, str) and Path(value).is_absolute() and "\0" not in value


def extra_folders_text(folders: Mapping[str, Sequence[Path]]) -> bytes:
    """Write what the file holds for these folders."""
    plain = {kind: [str(one) for one in listed] for kind, listed in folders.items() if listed}
    return (json.dumps(plain, indent=4, ensure_ascii=False) + "\n").encode("utf-8", "surrogateescape")
