"""The files of control models, by the names that callers give, and of which kind each is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

from modules.errors import CheckpointError, InvalidValueError, UnknownNameError
from modules.models.detection.kinds import HasShape, row_of
from modules.scripts.program import Program
from modules.system.model_folders import files_below

SUFFIXES = (".safetensors", ".pth", ".pt", ".ckpt", ".bin")
HASHED_FROM, HASHED_BYTES = 0x100000, 0x10000
HASH_CHARS = 8
FOLDERS = ("ControlNet", "T2IAdapter", "IPAdapter")
PREPROCESSOR_FOLDER = "ControlNetPreprocessor"
BUNDLED = "featherweight-scenes"
"""What the files for the bundled model begin with: they come last, so that they are nobody's default for another."""
CLIP_FOLDERS = ("clip_vision", "ControlNetPreprocessor/clip_vision")


class Kind(Enum):
    """Kind of a file of weights, as the program's table of kinds calls it."""

    ORIGINAL = "a ControlNet of the original layout"
    DIFFUSERS = "a ControlNet of diffusers' layout"
    UNION = "a union ControlNet"
    LORA = "a Control-LoRA"
    T2I = "a T2I-adapter"
    LLLITE = "a ControlNet-LLLite"
    IP = "an IP-adapter"
    FLUX = "a ControlNet for FLUX.1"
    SD3 = "a ControlNet for SD3"
    Z_IMAGE = "a ControlNet for Z-Image"
    QWEN = "a ControlNet for Qwen-Image"
    FLUX_LORA = "a control LoRA of FLUX.1"
    FLUX_IP = "an IP-adapter for FLUX.1"
    ANIMA_LLLITE = "a ControlNet-LLLite for Anima"

    @property
    def is_net(self) -> bool:
        return self in (Kind.ORIGINAL, Kind.DIFFUSERS, Kind.UNION, Kind.LORA)

    @property
    def is_of_unet(self) -> bool:
        return not (self.is_of_transformer or self in (Kind.FLUX_LORA, Kind.FLUX_IP, Kind.ANIMA_LLLITE))

    @property
    def is_ip(self) -> bool:
        return self in (Kind.IP, Kind.FLUX_IP)

    @property
    def is_of_transformer(self) -> bool:
        return self in (Kind.FLUX, Kind.SD3, Kind.Z_IMAGE, Kind.QWEN)


KINDS = {kind.value: kind for kind in Kind}


@dataclass(frozen=True)
class ModelFile:
    """A control model's file. `title` is its name with its hash."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def title(self) -> str:
        return self.titled(self.name)

    def titled(self, name: str) -> str:
        """Return a caller's name of this file with its hash."""
        return f"{bare_name(name)} [{short_hash(self.path)}]"


def bare_name(title: str) -> str:
    """Return a title without its hash."""
    return title.partition(" [")[0].strip()


def short_hash(path: Path) -> str:
    """The first digits of the SHA-256 over a part of the file, as other programs show them."""
    stat = path.stat()
    return _hash_of(path, stat.st_mtime_ns, stat.st_size)


@cache
def _hash_of(path: Path, changed_ns: int, size_bytes: int) -> str:
    with path.open("rb") as file:
        file.seek(HASHED_FROM)
        return hashlib.sha256(file.read(HASHED_BYTES)).hexdigest()[:HASH_CHARS]


def folders_of(program: Program, names: Iterable[str] = FOLDERS) -> list[Path]:
    return [folder for name in names for folder in program.folders(name)]


def list_models(program: Program, with_shipped: bool = True) -> list[ModelFile]:
    """List all files by name; of two with one name the user's. Those that come with the program and lie outside of the
    user's folder are left out if they are not asked for."""
    folders = folders_of(program) if with_shipped else [program.folders(name)[0] for name in FOLDERS]
    found = {
        path.stem: ModelFile(path)
        for folder in reversed(folders)
        for path in sorted(files_below(folder))
        if path.suffix.lower() in SUFFIXES and path.stem != "None" and path.is_file()
    }
    return sorted(found.values(), key=lambda model: (model.name.startswith(BUNDLED), model.path.name))


def find_model(program: Program, wanted: str) -> ModelFile:
    """The file that a name means: with or without its ending and its hash, in any case, else the shortest that contains
    it. Raises `UnknownNameError`."""
    models = list_models(program)
    bare = bare_name(wanted).lower()
    bare = next((bare.removesuffix(suffix) for suffix in SUFFIXES if bare.endswith(suffix)), bare)
    for model in models:
        if model.name.lower() == bare or model.title.lower() == wanted.lower():
            return model
    near = [model for model in models if bare and bare in model.name.lower()]
    near.sort(key=lambda each: (each.name.startswith(BUNDLED), len(each.name)))
    if near:
        return near[0]
    raise UnknownNameError.of("ControlNet model", wanted, [model.name for model in models])


def kind_of(names: Mapping[str, HasShape], file: Path) -> Kind:
    """Recognize a file by the names of its tensors. Raises `CheckpointError`."""
    row = row_of(names)
    if row is not None and not row.is_read:
        raise CheckpointError(f"{file.name} is {row.sentence}. Choose another file.")
    if row is not None and row.name in KINDS:
        return KINDS[row.name]
    raise CheckpointError(
        f"{file.name} is no control model that is known: neither ControlNet, Control-LoRA, LLLite, T2I-adapter nor "
        "IP-adapter. Choose another file."
    )


def kind_of_file(path: Path) -> Kind:
    """Recognize a file. Raises `CheckpointError`."""
    from modules.models.files.tensor_source import open_tensors  # PyTorch, which the server does without

    with open_tensors(path) as file:
        return kind_of(file.entries, path)


def preprocessor_file(program: Program, names: Sequence[str]) -> Path:
    """The first of these files of weights that is there, anywhere below their folder, as safetensors too. Raises
    `InvalidValueError` that says where it belongs."""
    for name in names:
        for folder in folders_of(program, (PREPROCESSOR_FOLDER,)):
            for path in sorted(files_below(folder)):
                if path.stem == Path(name).stem and path.suffix.lower() in SUFFIXES:
                    return path
    raise InvalidValueError(
        f"The preprocessor needs the weights {' or '.join(names)}, which are missing: put the file into "
        f"models/{PREPROCESSOR_FOLDER}, or choose a preprocessor that needs none."
    )


def clip_vision_file(program: Program, name: str) -> Path:
    """The file of an image encoder. Raises `CheckpointError` that says where it belongs."""
    for folder in folders_of(program, CLIP_FOLDERS):
        for suffix in SUFFIXES:
            path = folder / f"{name}{suffix}"
            if path.is_file():
                return path
    raise CheckpointError(
        f"The IP-adapter needs the image encoder {name}.safetensors, which is missing: put it into models/clip_vision."
    )
