"""Reading one settings file of a folder in the diffusers layout, and holding it against the tensors."""

from pathlib import Path
from typing import Any

from modules.errors import CheckpointError
from modules.system.bounded import read_json_file

Settings = dict[str, Any]
SCHEDULER = "scheduler/scheduler_config.json"


def settings_of(folder: Path, name: str) -> Settings:
    """The settings in a file below a model's folder (`unet/config.json`); none where there is no such file.

    Raises `CheckpointError` for a file that is no table.
    """
    try:
        found = read_json_file(folder / name)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder.name}/{name}: cannot be read as JSON ({error}).") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{folder.name}/{name}: holds no settings, but something else.")
    return found


def compare(folder: Path, name: str, settings: Settings, key: str, tensors: object) -> None:
    """Raises `CheckpointError` where a setting says something else than the tensors do (`tensors`; None: nothing).

    A list in the settings may stand for one number that is always the same.
    """
    value = settings.get(key)
    if value is None or tensors is None or value == tensors:
        return
    if isinstance(value, list) and value and not isinstance(tensors, list) and set(map(str, value)) == {str(tensors)}:
        return
    raise wrong(folder, name, key, value, f"but the tensors say {tensors}")


def wrong(folder: Path, name: str, key: str, value: object, why: str) -> CheckpointError:
    """The error that names a setting."""
    return CheckpointError(
        f"{folder.name}/{name}: {key} is {value!r}; {why}. Repair the file, or download the folder again."
    )
