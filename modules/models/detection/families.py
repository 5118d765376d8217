"""The families of models, and the names and shapes in a header by which a file of each is known. Imports no torch.

Loading, downloads, the shelf of model files, model cards and extensions ask here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from modules.models.detection.kinds import FOLDERS, HasShape, Kind, other_of

PREFIX = "model.diffusion_model."
"""Before the names of a denoiser's tensors in a whole checkpoint."""
LEVELS = (f"{PREFIX}net.", PREFIX, "diffusion_model.", "net.", "model.", "module.", "_orig_mod.", "dit.")
"""Before the names of a denoiser in files of different programs, and where a module was saved inside a wrapper
it."""
UNET, TRANSFORMER = "unet", "transformer"
"""Folders of the denoiser in the diffusers layout."""


Shapes = Mapping[str, HasShape]
"""The tensors of a header by name."""
Test = Callable[[Shapes], bool]


@dataclass(frozen=True)
class AdapterVersion:
    """The words by which adapters and model cards name the models of a family: the "sd version" of cards, and the
    metadata by which an adapter's file says that it is for one: the beginning of kohya's `ss_base_model_version`, a
    part of `modelspec.architecture`, and in files without these the value of kohya's `ss_v2`."""

    name: str
    base: str
    architecture: str
    v2: str | None = None


@dataclass(frozen=True)
class Need:
    """A part that models of a family cannot do without and that may be in a file of its own: its type (see
    `parts.Part`), what people call it, and how wide its tokens are, or how many channels its latents have: `width` (0:
    any), or as the tensor `width_of` of the denoiser says, which takes as many `states` side by side."""

    type: str
    title: str
    width: int = 0
    width_of: str = ""
    states: int = 1

    @property
    def folder(self) -> str:
        """The folder below `models/` where files of it belong."""
        return FOLDERS[Kind.VAE if self.type.startswith("Autoencoder") else Kind.TEXT_ENCODER]

    def width_in(self, header: Shapes) -> int | None:
        """Return the width for the denoiser in a checkpoint's header; None for any."""
        entry = header.get(f"{PREFIX}{self.width_of}") if self.width_of else None
        return entry.shape[-1] // self.states if entry is not None and entry.shape else self.width or None


@dataclass(frozen=True, kw_only=True)
class FamilySigns:
    """A family, and how its models are known.

    `detects`: a checkpoint by its header. `detects_denoiser`: the denoiser in it, whose text encoders may be in other
    files; None: as `detects`. `in_folder`: a model in the diffusers layout, by the headers of its parts; `part` is the
    folder of its denoiser there, and `folder_signs` are tensors by which a single file in that layout is known.
    `width_of`: a tensor of the denoiser with as many rows as it is wide, where that tells models of the family apart.
    `adapter_version`: None where model cards have no word for the family. `needs`: the parts besides the denoiser.
    """

    name: str
    label: str
    detects: Test
    in_folder: Callable[[Mapping[str, Shapes]], bool]
    folder_signs: tuple[str, ...]
    detects_denoiser: Test | None = None
    part: str = TRANSFORMER
    width_of: str = ""
    adapter_version: AdapterVersion | None = None
    needs: tuple[Need, ...] = ()

    def has_denoiser(self, header: Shapes) -> bool:
        """Return whether the denoiser in a checkpoint's header is of this family."""
        return (self.detects_denoiser or self.detects)(header)

    def width(self, header: Shapes) -> int:
        """Return how wide the denoiser in a checkpoint's header is; 0 where that tells nothing."""
        entry = header.get(f"{PREFIX}{self.width_of}") if self.width_of else None
        return entry.shape[0] if entry is not None and entry.shape else 0


def input_channels(header: Shapes) -> int | None:
    """Return the channels that the UNet of a file takes: 4, and more for inpainting, edits, depth; None without one."""
    first = header.get(f"{PREFIX}input_blocks.0.0.weight")
    return None if first is None or len(first.shape) != 4 else first.shape[1]


def has_vector(header: Shapes) -> bool:
    """Return whether the UNet of a file adds a vector to its time embedding."""
    return f"{PREFIX}label_emb.0.0.weight" in header


def _context_width(header: Shapes) -> int | None:
    """Return the width of the tokens that the UNet of a file attends to."""
    keys = (key for key in header if key.startswith(PREFIX) and key.endswith("attn2.to_k.weight"))
    return next((header[key].shape[-1] for key in keys if header[key].shape), None)


def _has_linear_projections(header: Shapes, prefix: str = PREFIX, ending: str = ".1.proj_in.weight") -> bool:
    """Return whether linear layers are around the transformer blocks of a UNet, and not 1x1 convolutions."""
    keys = (key for key in header if key.startswith(prefix) and key.endswith(ending))
    return any(len(header[key].shape) == 2 for key in keys)


def _is_unet(header: Shapes, *channels: int) -> bool:
    return input_channels(header) in channels and not has_vector(header)


def _has(*names: str, lacks: tuple[str, ...] = ()) -> Test:
    """Return the test for a denoiser with all of these tensors, and without those that other families have."""
    wanted, others = [f"{PREFIX}{name}" for name in names], [f"{PREFIX}{name}" for name in lacks]
    return lambda header: all(name in header for name in wanted) and not any(name in header for name in others)


def _folder(*names: str, lacks: str = "", part: str = TRANSFORMER) -> Callable[[Mapping[str, Shapes]], bool]:
    """Return the test for a part of a folder with all of these tensors, and without `lacks`."""
    return lambda parts: all(name in parts.get(part, {}) for name in names) and lacks not in parts.get(part, {})


OPEN_CLIP = "ln_final.weight"
SIZES_EMBEDDING = "add_embedding."
OTHER_CONTEXT_WIDTH, REFINER_CONTEXT_WIDTH = 1024, 1280
UNET_SIGNS = ("down_blocks.0.resnets.0.conv1.weight",)
SD3_FOLDER = ("pos_embed.proj.weight", "transformer_blocks.0.attn.add_q_proj.weight")
FLUX = ("double_blocks.0.img_attn.norm.key_norm.scale", "vector_in.in_layer.weight")
FLUX_GUIDANCE = "guidance_in.in_layer.weight"
FLUX_FOLDER = ("single_transformer_blocks.0.proj_mlp.weight", "time_text_embed.text_embedder.linear_1.weight")
FLUX_FOLDER_GUIDANCE = "time_text_embed.guidance_embedder.linear_1.weight"
FLUX2 = "double_stream_modulation_img.lin.weight"
FLUX2_FOLDER = ("double_stream_modulation_img.linear.weight", "single_transformer_blocks.0.attn.to_qkv_mlp_proj.weight")
FLUX2_FOLDER_GUIDANCE = "time_guidance_embed.guidance_embedder.linear_1.weight"
CHROMA = "distilled_guidance_layer.in_proj.weight"
KREA2_FOLDER = "text_fusion.projector.weight"
QWEN_IMAGE21_SIGNS = ("txt_in.text_norm.weight", "modulation.1.weight")
FLUX3, FLUX3_FOLDER = "early_stream_modulations.image.lin.weight", "early_stream_modulations.image.linear.weight"
ERNIE_SIGN = "layers.0.adaLN_sa_ln.weight"
QWEN_IMAGE_SIGNS = ("txt_norm.weight", "transformer_blocks.0.img_mod.1.weight")
CLIP_L = Need("clip", "CLIP-L (clip_l.safetensors, 768 wide, 0.25 GB in 16 bits)", 768)
CLIP_G = Need("clip", "CLIP-G (clip_g.safetensors, 1280 wide, 1.4 GB in 16 bits)", 1280)
FLUX_CLIP = Need("clip", "CLIP-L (768 wide, 0.25 GB in 16 bits)", 768, "vector_in.in_layer.weight")
T5_XXL = Need("t5", "T5-XXL (4096 wide, 9.8 GB in 16 bits, 4.9 GB in 8)", 4096, "txt_in.weight")
QWEN3_4B = Need("llm", "Qwen3-4B (2560 wide, 8.0 GB in 16 bits)", 2560, "cap_embedder.0.weight")
QWEN3_06B = Need(
    *("llm", "Qwen3-0.6B base (1024 wide, 1.2 GB in 16 bits)", 1024, "llm_adapter.blocks.0.cross_attn.k_proj.weight")
)
QWEN3 = Need(
    "llm",
    "Qwen3-4B (2560 wide, 8.0 GB in 16 bits) for klein 4B, or Qwen3-8B (4096 wide, 16.4 GB) for klein 9B",
    width_of="txt_in.weight",
    states=3,
)
QWEN3_VL = Need("vision_llm", "Qwen3-VL-4B (2560 wide, 8.9 GB in 16 bits)", 2560, "txtmlp.0.scale")
QWEN3_VL_8B = Need(
    *("vision_llm", "Qwen3-VL-8B (4096 wide, 17.5 GB in 16 bits, 9.4 GB in int8)", 4096, "txt_in.text_norm.weight")
)
QWEN3_VL_OF_FLUX3 = Need(QWEN3_VL.type, QWEN3_VL.title, QWEN3_VL.width, "txt_in.weight", states=8)
QWEN25_VL = Need(
    "vision_qwen2", "Qwen2.5-VL-7B (3584 wide, 16.6 GB in 16 bits, 9.4 GB in fp8)", 3584, "txt_norm.weight"
)
MINISTRAL = Need("mistral", "Ministral 3 3B (3072 wide, 7.7 GB in 16 bits)", 3072, "text_proj.weight")
MISTRAL_SMALL = Need(
    "mistral_small",
    "Mistral Small 3 24B (5120 wide, 36 GB in 16 bits, 18 GB in fp8)",
    width_of="txt_in.weight",
    states=3,
)
VAE_OF_UNETS = Need("AutoencoderKL", "a VAE of its family", 4)
VAE_SD3 = Need("AutoencoderKL", "the VAE of SD3", 16)
VAE_FLUX = Need("AutoencoderKL", "the VAE of FLUX.1 (ae.safetensors, 0.3 GB)", 16)
VAE_FLUX2 = Need("AutoencoderKLFlux2", "the VAE of FLUX.2 (flux2-vae.safetensors, 0.3 GB)", 32)
VAE_QWEN = Need("AutoencoderKLQwenImage", "the VAE of Qwen-Image (qwen_image_vae.safetensors, 0.25 GB)", 16)
VAE_QWEN21 = Need(
    "AutoencoderKLQwenImage21", "the VAE of Qwen-Image-2.1 (qwen_image_2.1_vae_bf16.safetensors, 0.7 GB)", 64
)
SDXL_ADAPTERS = AdapterVersion("SDXL", "sdxl", "stable-diffusion-xl")

SD1 = FamilySigns(
    name="sd1",
    label="SD 1.x",
    detects=lambda header: (
        _is_unet(header, 4, 8, 9)
        and not any(key.startswith(("conditioner.", "cond_stage_model.model.")) for key in header)
    ),
    detects_denoiser=lambda header: (
        _is_unet(header, 4, 8, 9)
        and not _has_linear_projections(header)
        and _context_width(header) != OTHER_CONTEXT_WIDTH
    ),
    in_folder=lambda parts: True,  # what none of the others is
    folder_signs=UNET_SIGNS,
    part=UNET,
    adapter_version=AdapterVersion("SD1", "sd_v1", "stable-diffusion-v1", v2="False"),
    needs=(Need("clip", "CLIP-L, its text encoder"), VAE_OF_UNETS),
)
SD2 = FamilySigns(
    name="sd2",
    label="SD 2.x",
    detects=lambda header: (
        _is_unet(header, 4, 9)
        and (f"cond_stage_model.model.{OPEN_CLIP}" in header or f"conditioner.embedders.0.model.{OPEN_CLIP}" in header)
    ),
    detects_denoiser=lambda header: _is_unet(header, 4, 9),  # after SD 1.x in the list
    in_folder=lambda parts: _has_linear_projections(parts.get(UNET, {}), "", ".proj_in.weight"),
    folder_signs=UNET_SIGNS,
    part=UNET,
    adapter_version=AdapterVersion("SD2", "sd_v2", "stable-diffusion-v2", v2="True"),
    needs=(Need("clip", "OpenCLIP, its text encoder"), VAE_OF_UNETS),
)
SDXL = FamilySigns(
    name="sdxl",
    label="SDXL",
    detects=lambda header: f"conditioner.embedders.1.model.{OPEN_CLIP}" in header,
    detects_denoiser=lambda header: has_vector(header) and _context_width(header) != REFINER_CONTEXT_WIDTH,
    in_folder=lambda parts: any(name.startswith(SIZES_EMBEDDING) for name in parts.get(UNET, {})),
    folder_signs=UNET_SIGNS,
    part=UNET,
    adapter_version=SDXL_ADAPTERS,
    needs=(CLIP_L, CLIP_G, VAE_OF_UNETS),
)
SDXL_REFINER = FamilySigns(
    name="sdxl_refiner",
    label="SDXL refiner",
    detects=lambda header: has_vector(header) and f"conditioner.embedders.0.model.{OPEN_CLIP}" in header,
    detects_denoiser=lambda header: has_vector(header) and _context_width(header) == REFINER_CONTEXT_WIDTH,
    in_folder=lambda parts: UNET in parts and "text_encoder_2" in parts and "text_encoder" not in parts,
    folder_signs=UNET_SIGNS,
    part=UNET,
    adapter_version=SDXL_ADAPTERS,
    needs=(CLIP_G, VAE_OF_UNETS),
)
SD3 = FamilySigns(
    name="sd3",
    label="SD 3",
    detects=_has("x_embedder.proj.weight", lacks=("y_embedder.y_proj.fc1.weight", ERNIE_SIGN)),  # as PixArt has both
    in_folder=_folder(*SD3_FOLDER),
    folder_signs=SD3_FOLDER,
    needs=(CLIP_L, CLIP_G, VAE_SD3),
)
Z_IMAGE = FamilySigns(
    name="z_image",
    label="Z-Image",
    detects=_has("cap_pad_token"),
    in_folder=_folder("cap_pad_token"),
    folder_signs=("cap_pad_token", "all_x_embedder.2-1.weight"),
    needs=(QWEN3_4B, VAE_FLUX),
)
ANIMA = FamilySigns(
    name="anima",
    label="Anima",
    detects=_has("llm_adapter.embed.weight"),  # other Cosmos models have no such adapter
    in_folder=lambda parts: (
        "embed.weight" in parts.get("text_conditioner", {}) and "patch_embed.proj.weight" in parts.get(TRANSFORMER, {})
    ),
    folder_signs=("patch_embed.proj.weight", "time_embed.t_embedder.linear_1.weight"),
    needs=(QWEN3_06B, VAE_QWEN),
)
FLUX1_SCHNELL = FamilySigns(
    name="flux1_schnell",
    label="FLUX.1 schnell",
    detects=_has(*FLUX, lacks=(FLUX_GUIDANCE,)),
    in_folder=_folder(*FLUX_FOLDER, lacks=FLUX_FOLDER_GUIDANCE),
    folder_signs=FLUX_FOLDER,
    needs=(FLUX_CLIP, T5_XXL, VAE_FLUX),
)
FLUX1_DEV = FamilySigns(
    name="flux1_dev",
    label="FLUX.1 dev",
    detects=_has(*FLUX, FLUX_GUIDANCE),
    in_folder=_folder(*FLUX_FOLDER, FLUX_FOLDER_GUIDANCE),
    folder_signs=(*FLUX_FOLDER, FLUX_FOLDER_GUIDANCE),
    needs=(FLUX_CLIP, T5_XXL, VAE_FLUX),
)
FLUX2_KLEIN = FamilySigns(
    name="flux2_klein",
    label="FLUX.2 klein",
    detects=_has(FLUX2, lacks=(FLUX_GUIDANCE,)),
    in_folder=_folder(*FLUX2_FOLDER, lacks=FLUX2_FOLDER_GUIDANCE),
    folder_signs=FLUX2_FOLDER,
    width_of="img_in.weight",
    needs=(QWEN3, VAE_FLUX2),
)
FLUX2_DEV = FamilySigns(
    name="flux2_dev",
    label="FLUX.2 dev",
    detects=_has(FLUX2, FLUX_GUIDANCE),
    in_folder=_folder(*FLUX2_FOLDER, FLUX2_FOLDER_GUIDANCE),
    folder_signs=(*FLUX2_FOLDER, FLUX2_FOLDER_GUIDANCE),
    needs=(MISTRAL_SMALL, VAE_FLUX2),
)
CHROMA1 = FamilySigns(
    name="chroma1",
    label="Chroma1",
    detects=_has(CHROMA, FLUX[0]),
    in_folder=_folder(CHROMA),
    folder_signs=(CHROMA, "transformer_blocks.0.attn.to_q.weight"),
    needs=(T5_XXL, VAE_FLUX),
)
KREA2 = FamilySigns(
    name="krea2",
    label="Krea 2",
    detects=_has("txtfusion.projector.weight"),
    in_folder=_folder(KREA2_FOLDER),
    folder_signs=(KREA2_FOLDER, "time_mod_proj.weight"),
    needs=(QWEN3_VL, VAE_QWEN),
)
QWEN_IMAGE = FamilySigns(
    name="qwen_image",
    label="Qwen-Image",
    detects=_has(*QWEN_IMAGE_SIGNS),
    in_folder=_folder(*QWEN_IMAGE_SIGNS),
    folder_signs=QWEN_IMAGE_SIGNS,
    needs=(QWEN25_VL, VAE_QWEN),
)
ERNIE_IMAGE = FamilySigns(
    name="ernie_image",
    label="ERNIE-Image",
    detects=_has(ERNIE_SIGN, "text_proj.weight"),
    in_folder=_folder(ERNIE_SIGN),
    folder_signs=(ERNIE_SIGN, "text_proj.weight"),
    needs=(MINISTRAL, VAE_FLUX2),
)
QWEN_IMAGE21 = FamilySigns(
    name="qwen_image21",
    label="Qwen-Image-2.1",
    detects=_has(*QWEN_IMAGE21_SIGNS),
    in_folder=_folder(*QWEN_IMAGE21_SIGNS),
    folder_signs=QWEN_IMAGE21_SIGNS,
    needs=(QWEN3_VL_8B, VAE_QWEN21),
)
FLUX3_KLEIN = FamilySigns(
    name="flux3_klein",
    label="FLUX.3 klein",
    detects=_has(FLUX3),
    in_folder=_folder(FLUX3_FOLDER),
    folder_signs=(FLUX3_FOLDER, "txt_mode_blocks.0.attn.to_q.weight"),
    needs=(QWEN3_VL_OF_FLUX3, VAE_FLUX2),
)
FAMILIES = (
    *(SD1, SD2, SDXL, SDXL_REFINER, SD3, Z_IMAGE, ANIMA),
    *(FLUX1_SCHNELL, FLUX1_DEV, FLUX2_KLEIN, FLUX2_DEV, CHROMA1, KREA2, QWEN_IMAGE),
    *(ERNIE_IMAGE, QWEN_IMAGE21, FLUX3_KLEIN),
)
"""In the order in which a checkpoint's header is compared with them; folders are compared from the last to the first,
which is what none of the others is."""


def checkpoint_family(header: Shapes) -> FamilySigns | None:
    """Return the family whose checkpoints have this header, of names as in a whole checkpoint."""
    found = next((family for family in FAMILIES if family.detects(header)), None)
    return None if found is None or other_of(header, Kind.DENOISER) else found


def denoiser_family(header: Shapes) -> FamilySigns | None:
    """Return the family of the denoiser in a header of names as in a whole checkpoint."""
    found = next((family for family in FAMILIES if family.has_denoiser(header)), None)
    return None if found is None or other_of(header, Kind.DENOISER) else found


def folder_family(parts: Mapping[str, Shapes]) -> FamilySigns:
    """Return the family of a model in the diffusers layout by the headers of its parts."""
    return next(family for family in reversed(FAMILIES) if family.in_folder(parts))


def is_diffusers_file(header: Shapes) -> bool:
    """Return whether the names in a file are those of the diffusers layout, behind the name of their component."""
    return any(all(f"{family.part}.{sign}" in header for sign in family.folder_signs) for family in FAMILIES)


def whole_names(header: Shapes) -> Mapping[str, str] | None:
    """Return the names in a whole checkpoint by those in the file of a denoiser alone; None for other files.

    Such a file has the names of a whole checkpoint without their beginning, or those of diffusers.
    """
    text = "\n".join(("", *header))
    for level in LEVELS:
        if level != PREFIX and f"\n{level}" in text:
            names = {key: f"{PREFIX}{key.removeprefix(level)}" if key.startswith(level) else key for key in header}
            if denoiser_family({names[key]: entry for key, entry in header.items()}):
                return names
    if denoiser_family(header):
        return None
    if denoiser_family({f"{PREFIX}{key}": entry for key, entry in header.items()}):
        return {key: f"{PREFIX}{key}" for key in header}
    for level in ("", *LEVELS):
        for family in FAMILIES:
            if all(f"{level}{sign}" in header for sign in family.folder_signs):
                ours = f"{family.part}."
                return {key: f"{ours}{key.removeprefix(level)}" if key.startswith(level) else key for key in header}
    return None


def adapter_versions() -> tuple[str, ...]:
    """Return what model cards call the families that have a word there."""
    return tuple(dict.fromkeys(version.name for version in _VERSIONS))


def version_of_family(label: str) -> str:
    """Return the word of model cards for the family with this label; "" where there is none."""
    version = next((family.adapter_version for family in FAMILIES if family.label == label), None)
    return version.name if version else ""


def version_of_metadata(metadata: Mapping[str, str]) -> str:
    """Return the word of model cards for the models that an adapter's metadata says it is for; "" where nothing is
    known."""
    base = metadata.get("ss_base_model_version", "").lower()
    architecture = metadata.get("modelspec.architecture", "").lower()
    for version in _VERSIONS:
        if base.startswith(version.base) or version.architecture in architecture:
            return version.name
    v2 = "" if base else metadata.get("ss_v2", "")
    return next((version.name for version in _VERSIONS if v2 and version.v2 == v2), "")


_VERSIONS = [family.adapter_version for family in FAMILIES if family.adapter_version is not None]
