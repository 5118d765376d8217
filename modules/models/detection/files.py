"""The one answer to what a model file is, by its header alone: kind, family, layout, format, what it lacks and where it
belongs. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from modules.errors import CheckpointError
from modules.models.detection.adapters import adapter_layout, adapter_of, algorithm_of
from modules.models.detection.families import (
    FAMILIES,
    PREFIX,
    SD1,
    SD2,
    SD3,
    SDXL,
    FamilySigns,
    Need,
    Shapes,
    checkpoint_family,
    denoiser_family,
    folder_family,
    input_channels,
    is_diffusers_file,
    whole_names,
)
from modules.models.detection.formats import stored_format
from modules.models.detection.kinds import FOLDERS, HasShape, Kind, Row, other_of, other_of_class, row_of
from modules.models.detection.parts import (
    ENCODER_TYPES,
    LLM_SIGNS,
    T5_SIGN,
    VISION,
    Part,
    parts_in,
    vae_signs,
    without_level,
)
from modules.models.files.diffusers_folder import classes_in, components_in, is_diffusers_folder, weight_files
from modules.models.files.file_header import header_of
from modules.models.files.header import Header
from modules.models.files.other_files import adapter_or_embedding

CHECKPOINTS, VAES, ENCODERS = FOLDERS[Kind.CHECKPOINT], FOLDERS[Kind.VAE], FOLDERS[Kind.TEXT_ENCODER]
LORAS, EMBEDDINGS, CONTROL = FOLDERS[Kind.LORA], FOLDERS[Kind.EMBEDDING], FOLDERS[Kind.CONTROLNET]
UPSCALERS, IMAGE_ENCODERS, TINY_VAES = FOLDERS[Kind.UPSCALER], FOLDERS[Kind.IMAGE_ENCODER], FOLDERS[Kind.TINY_VAE]
DEPTH_CHANNELS, UPSCALER_CHANNELS, LISTED = 5, 7, 3
VIDEO_PATCHES, VIDEO_SIDES = ("patch_embedding.weight", "img_in.proj.weight", "patch_embed.proj.weight"), 5
"""Convolutions over time, height and width that video models cut their latents with."""
OF_LANGUAGE_MODELS = ("layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight", "blk.0.attn_qkv.weight")
GGUF_ENCODERS = {"t5": "t5", "t5encoder": "t5", "qwen3": "llm", "qwen3vl": "vision_llm", "qwen2vl": "vision_qwen2"}
"""Architectures in GGUF files of text encoders, and the types of these."""
GGUF_VIDEO = ("wan", "hyvid", "ltxv")
GGUF_KNOWN = (
    *("sd1", "sdxl", "sd3", "flux", "chroma", "qwen_image", "lumina2", "z_image", "anima", "cosmos", "krea2"),
    *("aura", "hidream", "pig", "ernie_image", "qwen_image21", ""),
)
"""Architectures in GGUF files of denoisers whose tensors are not at hand."""
EMA = "model_ema."
"""Before the names of a mean of the weights, which some files have alone."""
FAMILY_OF = {family.name: family for family in FAMILIES}
FAMILY_OF_WIDTH = {768: SD1, 1024: SD2, 2048: SDXL}
"""Families by the width of the tokens that their UNets attend to."""


@dataclass(frozen=True)
class Detected:
    """A file as its header says it.

    `what`: the kind with more, for people. `family`: that of the denoiser in it, or the one that an adapter is for;
    None where there is none, or one that is not known here. `layout`: whose names the tensors have. `format`: that of
    most weights. `parts`: the models in it, the denoiser among them; `missing`: what its family needs besides them.
    `folder`: where it belongs. `refusal`: what is wrong with a file that is of no use here, to be read after its name.
    """

    kind: Kind = Kind.UNKNOWN
    what: str = ""
    family: FamilySigns | None = None
    layout: str = ""
    format: str = ""
    parts: tuple[Part, ...] = ()
    missing: tuple[Need, ...] = ()
    folder: str = ""
    refusal: str = ""

    @property
    def is_supported(self) -> bool:
        """Whether the file is of use here."""
        return not self.refusal

    @property
    def sentence(self) -> str:
        """The answer, to be read after "it"."""
        if self.refusal:
            return self.refusal.removesuffix(".")
        if self.missing:
            lacks = " and ".join(f"{need.title} (put it into models/{need.folder})" for need in self.missing)
            return f"is {self.line}, and lacks {lacks}"
        return f"is {self.line} (put it into {'' if self.kind is Kind.EMBEDDING else 'models/'}{self.folder})"

    @property
    def line(self) -> str:
        """The answer in one line: kind, family, layout and format."""
        word = "of" if self.kind in (Kind.CHECKPOINT, Kind.DENOISER) else "for"
        family = f"{word} {self.family.label}" if self.family is not None and " for " not in self.what else ""
        layout = f"{self.layout} names" if self.layout else ""
        return ", ".join(filter(None, (f"{self.what} {family}".strip(), layout, self.format)))


def detected(header: Header) -> Detected:
    """Return what a file is by its header."""
    form = stored_format(header)
    found = _of_gguf_head(header) if header.format == "gguf" and not header.tensors else _of_tensors(header)
    refusal = found.refusal
    if not refusal and not form.is_read:
        refusal = f"is {found.what} in {form.label}, which is not read. Use a copy in 16 bits, fp8 or GGUF."
    return Detected(
        found.kind,
        found.what or found.kind.words,
        found.family,
        found.layout,
        form.label,
        found.parts,
        found.missing if header.is_whole and not refusal else (),
        "" if refusal else found.folder or FOLDERS.get(found.kind, ""),
        refusal,
    )


def detected_at(path: Path) -> Detected:
    """Return what a file is, or a folder in the diffusers layout."""
    if not is_diffusers_folder(path):
        return detected(header_of(path))
    other = next(filter(None, map(other_of_class, classes_in(path))), None)
    if other is not None:
        return Detected(other.kind, other.name, layout="diffusers", refusal=f"is {other.sentence}.")
    parts: dict[str, Header] = {}
    for name in components_in(path):
        try:
            parts[name] = header_of(weight_files(path / name)[0])
        except (CheckpointError, IndexError):  # said when the model is loaded
            continue
    family = folder_family({name: header.tensors for name, header in parts.items()})
    if family.part not in parts:
        return Detected(refusal=f"is a folder without its {family.part}.")
    form, held = stored_format(parts[family.part]).label, [Part(family.name, 0)]
    for header in parts.values():
        held += parts_in(header.tensors)
    missing = _missing(family, {}, held[1:])
    return Detected(Kind.CHECKPOINT, "a checkpoint", family, "diffusers", form, tuple(held), missing, CHECKPOINTS)


def _of_tensors(header: Header) -> Detected:
    """Return what a file is by its tensors, without what follows from that."""
    tensors = header.tensors
    row = row_of(tensors)
    if row is not None:
        return _of_row(row, tensors)
    match adapter_or_embedding(tensors):
        case "adapter":
            return _of_adapter(tensors)
        case "embedding":
            return Detected(Kind.EMBEDDING, "an embedding", _family_of_width(tensors))
    parts = parts_in(tensors, header.architecture)
    whole, family, layout = _denoiser(tensors)
    if family is not None:
        kind = Kind.CHECKPOINT if parts else Kind.DENOISER
        held = (Part(family.name, family.width(whole)), *parts)
        return Detected(kind, "", family, layout, parts=held, missing=_missing(family, whole, parts))
    if parts and not any(name.startswith((PREFIX, EMA)) for name in tensors):
        return _of_part(header, parts[0])
    return _unknown(header)


def _of_row(row: Row, tensors: Shapes) -> Detected:
    if not row.is_read:
        return Detected(row.kind, row.name, refusal=f"is {row.sentence}.")
    family = FAMILY_OF.get(row.family) or _family_of_width(tensors)
    return Detected(row.kind, row.name, family, folder=row.folder)


def _of_adapter(tensors: Shapes) -> Detected:
    what, row, layout = algorithm_of(tensors), adapter_of(tensors), adapter_layout(tensors)
    if not what:
        return Detected(Kind.LORA, "a LoRA", refusal="is a LoRA without its factors: the file is not whole.")
    if row is not None and not row.is_read:
        return Detected(Kind.LORA, what, layout=layout, refusal=f"is {what} for {row.sentence}.")
    return Detected(Kind.LORA, what, FAMILY_OF[row.name] if row is not None else None, layout)


def _family_of_width(tensors: Shapes) -> FamilySigns | None:
    """Return the family whose text tokens are as wide as those that a file attends to, or holds."""
    if "clip_g" in tensors:
        return SD3 if "t5xxl" in tensors else SDXL
    ends = ("attn2.to_k.weight", "to_k_ip.weight", "emb_params")
    wide = next((entry.shape[-1:] for name, entry in tensors.items() if name.endswith(ends)), ())
    return FAMILY_OF_WIDTH.get(wide[0]) if wide else None


def _denoiser(header: Shapes) -> tuple[Shapes, FamilySigns | None, str]:
    """Return a file with a denoiser under the names of a whole checkpoint, its family, and whose names it has."""
    names = whole_names(header) or {}
    whole = {names.get(key, key): entry for key, entry in header.items()}
    original = checkpoint_family(whole) or denoiser_family(whole)
    family = original or _diffusers_family(whole)
    return whole, family, "original" if original is not None else "diffusers"


def _diffusers_family(header: Shapes) -> FamilySigns | None:
    """Return the family of a file in the diffusers layout, whose names begin with those of its parts."""
    if not is_diffusers_file(header):
        return None
    parts: dict[str, dict[str, HasShape]] = {}
    for key, entry in header.items():
        part, _, name = key.partition(".")
        parts.setdefault(part, {})[name] = entry
    found = folder_family(parts)
    return found if found.part in parts else None


def _missing(family: FamilySigns, denoiser: Shapes, parts: Iterable[Part]) -> tuple[Need, ...]:
    """Return the parts that a family needs and that are not among these."""
    left, missing = list(parts), []
    for need in family.needs:
        width = need.width_in(denoiser)
        fitting = [one for one in left if one.type == need.type and (width is None or one.width in (0, width))]
        if fitting:
            left.remove(fitting[0])
        else:
            missing.append(replace(need, width=width or 0))
    return tuple(missing)


def _of_part(header: Header, part: Part) -> Detected:
    """Return what a file with a text encoder or a VAE is."""
    if part.type not in ENCODER_TYPES:
        held = vae_signs(without_level(header.tensors))
        layout = "diffusers" if held is not None and held[1] else "original"
        return Detected(Kind.VAE, f"a VAE ({part.width} channels)", layout=layout, parts=(part,))
    names = header.tensors
    layout = "llama.cpp" if header.format == "gguf" and any(sign in names for sign in (T5_SIGN, *LLM_SIGNS)) else ""
    layout = layout or ("OpenCLIP" if any("resblocks." in name for name in names) else "transformers")
    return Detected(Kind.TEXT_ENCODER, f"a text encoder, {ENCODER_TYPES[part.type]}", layout=layout, parts=(part,))


def _of_gguf_head(header: Header) -> Detected:
    """Return what a GGUF file is of whose tensors nothing is known yet, by its architecture."""
    name = header.architecture
    encoder = GGUF_ENCODERS.get(name)
    if encoder is not None:
        width = header.metadata.get(f"{name}.embedding_length", "")
        part = Part(encoder, int(width) if width.isdecimal() else 0)
        what = f"a text encoder, {ENCODER_TYPES[encoder]}"
        return Detected(Kind.TEXT_ENCODER, what, layout="llama.cpp", parts=(part,))
    if name in GGUF_VIDEO:
        return Detected(Kind.MEDIA, refusal=f"is a video model ({name}); this program makes images.")
    if name in GGUF_KNOWN:
        return Detected(Kind.DENOISER)
    return Detected(
        Kind.LANGUAGE_MODEL, refusal=f"is a language model ({name}); no model of images here reads with it."
    )


def _unknown(header: Header) -> Detected:
    """Return what can be said of a file with no model that is known."""
    tensors = header.tensors
    channels, what = input_channels(tensors), ""
    if channels == DEPTH_CHANNELS:
        what = "the UNet of a depth model (5 channels), which is not supported"
    elif channels == UPSCALER_CHANNELS:
        what = "the UNet of Stable Diffusion's x4 upscaler (7 channels), which is not supported"
    elif channels is not None:
        what = f"a UNet of {channels} channels, which no known family has"
    if what:
        return Detected(Kind.DENOISER, what, refusal=f"has {what}.")
    for name, entry in tensors.items():
        if name.endswith(VIDEO_PATCHES) and len(entry.shape) == VIDEO_SIDES and VISION not in name:
            return Detected(Kind.MEDIA, refusal=f"is a video model ({name} says so); this program makes images.")
    if any(name.endswith(OF_LANGUAGE_MODELS) for name in tensors):
        wide = next((one.shape[1] for name, one in tensors.items() if "embed" in name and len(one.shape) == 2), 0)
        said = f"is a language model ({wide} wide); no model of images here reads with it."
        return Detected(Kind.LANGUAGE_MODEL, refusal=said)
    for name, (shape, _) in tensors.items() if len(tensors) == 1 else ():
        family = FAMILY_OF_WIDTH.get(shape[-1]) if len(shape) in (1, 2) and "." not in name else None
        if family is not None:  # as diffusers writes them
            return Detected(Kind.EMBEDDING, "an embedding", family)
    if header.format == "pickle" and not (tensors and header.is_whole):
        return Detected(Kind.CHECKPOINT, "a pickle, whose contents are not known before it is here")
    if any(name.startswith((PREFIX, EMA)) for name in tensors) or (
        header.format == "gguf" and header.architecture in GGUF_KNOWN
    ):
        known = f"the architecture {header.architecture}, without" if header.architecture else "a family unknown by"
        return Detected(Kind.CHECKPOINT, f"a checkpoint of {known} its tensors")
    if header.format in ("", "onnx"):
        named = "is an ONNX model: of these detectors alone are read, from models/adetailer"
        return Detected(refusal=f"{named if header.format else 'is damaged, or no model file'}.")
    other = other_of(tensors, Kind.UNKNOWN)
    if other is not None:
        return Detected(other.kind, other.name, refusal=f"is {other.sentence}.")
    first = ", ".join(list(tensors)[:LISTED])
    said = f"is of no known kind of model: its tensors begin with {first}." if first else "has no tensors."
    return Detected(refusal=said)
