"""The contents of a folder of the reference UI or of Forge: models, settings, styles, outputs. Only read."""

import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modules.errors import InvalidValueError
from modules.system.bounded import read_json_file
from modules.system.extra_folders import FILE as MODEL_FOLDERS_FILE
from modules.system.file_names import lies_in
from modules.system.paths import FACE_FLAGS, UPSCALER_FLAGS

MODEL_SUFFIXES = frozenset((".safetensors", ".ckpt", ".pt", ".pth", ".bin", ".onnx", ".sft", ".gguf"))
KINDS = (
    *("Stable-diffusion", "VAE", "VAE-taesd", "VAE-approx", "Lora", "LyCORIS", "hypernetworks"),
    *("text_encoder", "text_encoders", "clip", *UPSCALER_FLAGS, *FACE_FLAGS),
)
"""Folders below models/ that have a counterpart here."""
FOLDER_FLAGS = {
    "ckpt_dir": "Stable-diffusion",
    "vae_dir": "VAE",
    "lora_dir": "Lora",
    "lyco_dir_backcompat": "LyCORIS",
    "embeddings_dir": "embeddings",
    "hypernetwork_dir": "hypernetworks",
    **{flag: name for name, flag in (*UPSCALER_FLAGS.items(), *FACE_FLAGS.items()) if flag},
}
"""Flags that name folders of models -> the kind."""
START_FILES = ("webui-user.sh", "webui-user.bat")
OUTPUT_FOLDERS = ("outputs", "output", "log/images")
_ARGUMENTS = re.compile(r"^\s*(?:export|set)\s+\"?COMMANDLINE_ARGS=(.*)$", re.MULTILINE | re.IGNORECASE)
_SIGNS = ("webui.py", "models", "config.json", "styles.csv", "outputs")
MAX_FILE_BYTES = 16_000_000
MAX_COUNT_S = 10.0


@dataclass
class ReferenceFolder:
    """Everything that was found; `faults` says which files could not be read and why."""

    folder: Path
    models: dict[str, list[tuple[Path, int]]] = field(default_factory=dict)  # kind -> folders with counts of files
    other_models: list[tuple[Path, int]] = field(default_factory=list)  # without a counterpart
    config: Mapping[str, Any] = field(default_factory=dict)
    ui_config: Mapping[str, Any] = field(default_factory=dict)
    outputs: list[Path] = field(default_factory=list)
    extensions: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)  # of its start file, besides folders of models
    other_files: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def styles(self) -> Path:
        return self.folder / "styles.csv"

    @classmethod
    def look(cls, folder: Path) -> "ReferenceFolder":
        """Look into a folder. Raises `InvalidValueError` for what is no folder of such a program."""
        folder = Path(os.path.normpath(folder.expanduser().absolute()))
        if not folder.is_dir():
            raise InvalidValueError(
                f"{folder} is not a folder on this machine. Give the full path of the other program."
            )
        if not (folder / "models").is_dir() and (folder / "webui" / "models").is_dir():
            folder = folder / "webui"  # Forge's packages for Windows
        if sum((folder / sign).exists() for sign in _SIGNS) < 2:
            raise InvalidValueError(
                f"{folder} is no folder of the reference UI or Forge: there should be models, config.json, styles.csv "
                "or outputs in it. Give the folder that holds webui.py, or that of its --data-dir."
            )
        found = cls(folder)
        found.config = found._read_json("config.json")
        found.ui_config = found._read_json("ui-config.json")
        found._find_models()
        found._read_start_files()
        found._find_outputs()
        if (folder / "extensions").is_dir():
            found.extensions = sorted(path.name for path in (folder / "extensions").iterdir() if path.is_dir())
        for name in ("user.css", "localizations", "textual_inversion_templates", "scripts", "config_states"):
            path = folder / name
            is_empty = path.is_dir() and not any(one.is_file() and one.suffix != ".py" for one in path.iterdir())
            if path.exists() and not is_empty:
                found.other_files.append(name)
        return found

    def _read_json(self, name: str) -> Mapping[str, Any]:
        path = self.folder / name
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise ValueError(f"it is larger than {MAX_FILE_BYTES // 1_000_000} MB")
            read = read_json_file(path, constant=float)
            if not isinstance(read, dict):
                raise ValueError("it is no JSON object")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self.faults.append(f"{path} was left out: {error}.")
            return {}
        return read

    def _find_models(self) -> None:
        models = self.folder / "models"
        for path in sorted(models.iterdir()) if models.is_dir() else ():
            if not path.is_dir():
                continue
            kind = next((kind for kind in KINDS if kind.lower() == path.name.lower()), None)
            self._add_models(kind, path)
        self._add_models("embeddings", self.folder / "embeddings")

    def _add_models(self, kind: str | None, path: Path) -> None:
        if not path.exists():
            return
        if not lies_in(path, (self.folder,)):
            self.faults.append(
                f"{path} leads to {path.resolve()}, outside of the folder. If its models should be read, write it into "
                f"{MODEL_FOLDERS_FILE} of the data folder."
            )
            return
        count = count_models(path, time.monotonic() + MAX_COUNT_S, images=kind == "embeddings")
        if not count:
            return
        if kind is None:
            self.other_models.append((path, count))
        elif all(known != path for known, _ in self.models.get(kind, ())):
            self.models.setdefault(kind, []).append((path, count))

    def _read_start_files(self) -> None:
        """Folders of models that its start file names, and the names of the other flags."""
        for name in START_FILES:
            path = self.folder / name
            try:
                text = path.read_text(encoding="utf-8", errors="replace")[:MAX_FILE_BYTES]
            except OSError:
                continue
            for line in _ARGUMENTS.findall(text):
                self._read_words(_words_of(line, is_posix=path.suffix == ".sh"))

    def _read_words(self, words: list[str]) -> None:
        for flag, value in _flags_of(words):
            kind = FOLDER_FLAGS.get(flag.lstrip("-").replace("-", "_"))
            if kind is None:
                self.flags.append(f"{flag} {value}".strip())
                continue
            path = Path(os.path.normpath(self.folder / Path(value).expanduser()))
            if not value or not path.is_dir():
                self.faults.append(f"{flag} of its start file names {value or 'no folder'}, which is not there.")
                continue
            self._add_models(kind, path)

    def _find_outputs(self) -> None:
        named = (value for key, value in self.config.items() if key.startswith("outdir_") and isinstance(value, str))
        candidates = [*OUTPUT_FOLDERS, *(value for value in named if value)]
        found: list[Path] = []
        for text in candidates:
            path = Path(os.path.normpath(self.folder / text.replace("\\", "/")))
            if not path.is_dir() or any(path.is_relative_to(known) for known in found):
                continue
            if not lies_in(path, (self.folder,)):
                self.faults.append(
                    f"{path} lies outside of the folder, so that its images may not be imported with it; the History "
                    "tab imports them."
                )
                continue
            found.append(path)
        self.outputs = found


def count_models(folder: Path, until: float, images: bool = False) -> int:
    """Files of models below a folder, links to folders not followed; embeddings may be images too. As many as are found
    until then, a moment of `time.monotonic`."""
    suffixes = {*MODEL_SUFFIXES, ".png", ".webp"} if images else MODEL_SUFFIXES
    count = 0
    for _, _, names in os.walk(folder):
        count += sum(Path(name).suffix.lower() in suffixes for name in names)
        if time.monotonic() > until:
            break
    return count


def _words_of(line: str, is_posix: bool) -> list[str]:
    line = line.strip().rstrip("\r")
    if is_posix and line[:1] in "\"'" and line.endswith(line[:1]):
        line = line[1:-1]
    try:
        words = shlex.split(line, posix=is_posix)
    except ValueError:  # a quote that is not closed
        words = line.split()
    return [word.strip("\"'") for word in words]


def _flags_of(words: list[str]) -> Iterator[tuple[str, str]]:
    """Each flag with what follows it."""
    flag = ""
    values: list[str] = []
    for word in words:
        if word.startswith("--"):
            if flag:
                yield flag, " ".join(values)
            flag, _, value = word.partition("=")
            values = [value] if value else []
        else:
            values.append(word)
    if flag:
        yield flag, " ".join(values)
