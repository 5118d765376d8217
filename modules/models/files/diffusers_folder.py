"""Folders in the layout of the diffusers library: which files of one are read, and how it is identified. Imports no
torch.

`NAME/model_index.json` is next to one folder for each component (`unet/`, `vae/`, `text_encoder/` ...), with its
weights in one file or in several that an index names, often in more than one precision.
"""

from collections.abc import Iterator
from pathlib import Path

from modules.errors import CheckpointError
from modules.models.files.pieces import pieces_of
from modules.system.bounded import read_json_file
from modules.system.file_names import is_name

MODEL_INDEX = "model_index.json"
COMPONENTS = ("text_encoder", "text_encoder_2", "text_encoder_3", "transformer", "unet", "vae")
"""The folders that are read; others (tokenizers, safety checkers) are left alone."""
CONFIGS = (*(f"{component}/config.json" for component in COMPONENTS), "scheduler/scheduler_config.json")
STEMS = ("diffusion_pytorch_model", "model", "pytorch_model")
ENDINGS = (".safetensors", ".bin")
VARIANTS = ("", ".fp16")
"""In this order: what a program that is not told otherwise reads, then the smaller file of the same weights."""
REMEDY = "Download the folder again."


def is_diffusers_folder(path: Path) -> bool:
    """Whether a folder says that it is a model in this layout."""
    return (path / MODEL_INDEX).is_file()


def classes_in(folder: Path) -> Iterator[str]:
    """Yield what a folder calls the classes of its pipeline and its denoiser."""
    for path in (folder / MODEL_INDEX, *(folder / part / "config.json" for part in ("transformer", "unet"))):
        try:
            facts = read_json_file(path)
        except (OSError, ValueError):
            continue  # a file that cannot be read says nothing
        name = facts.get("_class_name") if isinstance(facts, dict) else None
        if isinstance(name, str):
            yield name


def components_in(folder: Path) -> tuple[str, ...]:
    """Names of the components that a folder has."""
    return tuple(name for name in COMPONENTS if (folder / name).is_dir())


def part_folders(folder: Path) -> tuple[Path, ...]:
    """All folders that the index of a model names; none where it cannot be read."""
    try:
        index = read_json_file(folder / MODEL_INDEX)
    except (OSError, ValueError):
        return tuple(folder / name for name in COMPONENTS)
    names = index if isinstance(index, dict) else {}
    return tuple(
        folder / name
        for name in {*COMPONENTS, *names}
        if not name.startswith("_") and is_name(name) and _is_folder(folder / name)
    )


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # its name is longer than names are
        return False


def weight_files(part: Path) -> tuple[Path, ...]:
    """The files with the weights of one component, `.safetensors` before `.bin`, the plain ones before `fp16`.

    Raises `CheckpointError` for a folder without such a file, with several of unknown kinds, or with an index that
    cannot be used or names files that are not there.
    """
    names = _names_in(part)
    for ending in ENDINGS:
        for variant in VARIANTS:
            for stem in STEMS:
                if f"{stem}{variant}{ending}" in names:
                    return (part / f"{stem}{variant}{ending}",)
                for index in (f"{stem}{ending}.index{variant}.json", f"{stem}{variant}{ending}.index.json"):
                    if index in names:
                        return _shards(part / index)
    others = sorted(name for name in names if name.endswith(ENDINGS[0]) and "non_ema" not in name)
    if len(others) == 1:
        return (part / others[0],)
    where = f"{part.parent.name}/{part.name}"
    found = f"several of unknown kinds: {', '.join(others)}" if others else "none"
    raise CheckpointError(
        f"{where}: looked for one file of weights ({STEMS[0]}.safetensors, {STEMS[1]}.safetensors, their .fp16 "
        f"variants, or .bin), and found {found}. {REMEDY}"
    )


def files_read(folder: Path) -> tuple[Path, ...]:
    """All files that a model is loaded from, weights and settings, by name; of a damaged folder what is there. Of a
    file that itself, and its other pieces."""
    if not folder.is_dir():
        try:
            return pieces_of(folder)
        except CheckpointError:  # said when the model is loaded
            return (folder,)
    found = [folder / name for name in CONFIGS if (folder / name).is_file()]
    for component in components_in(folder):
        try:
            found += weight_files(folder / component)
        except CheckpointError:  # said when the model is loaded
            found += [folder / component / name for name in _names_in(folder / component) if name.endswith(ENDINGS)]
    return tuple(sorted(found))


def stamp(path: Path) -> tuple[int, int]:
    """Size in bytes and time of change (ns) of a checkpoint, file or folder: it changes when the weights do.

    Raises `OSError` when the file, or all files of the folder, are gone.
    """
    stats = [file.stat() for file in files_read(path)]
    if not stats:
        return 0, path.stat().st_mtime_ns
    return sum(stat.st_size for stat in stats), max(stat.st_mtime_ns for stat in stats)


def sibling_file(path: Path, ending: str) -> Path:
    """The file NAME + `ending` next to a model file NAME.safetensors, or next to a model's folder NAME."""
    return path.with_name(f"{path.name if path.is_dir() else path.stem}{ending}")


def _names_in(part: Path) -> frozenset[str]:
    try:
        return frozenset(path.name for path in part.iterdir() if path.is_file())
    except OSError as error:
        raise CheckpointError(f"{part.parent.name}/{part.name}: cannot be read ({error.strerror}).") from error


def _shards(index: Path) -> tuple[Path, ...]:
    """The files that an index names, each once."""
    where = f"{index.parent.parent.name}/{index.parent.name}/{index.name}"
    try:
        names = list(dict.fromkeys(_checked(index, read_json_file(index)["weight_map"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{where}: is not an index of weights ({error!r:.80}). {REMEDY}") from error
    there = _names_in(index.parent)
    missing = [name for name in names if name not in there]
    if missing or not names:
        what = f"the files {', '.join(missing)} are missing" if missing else "it names no files"
        raise CheckpointError(f"{where}: {what}. {REMEDY}")
    return tuple(index.parent / name for name in names)


def _checked(index: Path, weight_map: dict[str, str]) -> Iterator[str]:
    for name in weight_map.values():
        if not is_name(name) or not name.endswith(ENDINGS):
            raise ValueError(f"{name!r} is no file of weights in {index.parent.name}")
        yield name
