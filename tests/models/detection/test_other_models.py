"""Files of other kinds are called by their names, and files of ours go where they belong, by what real ones hold."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from modules.adapters.adapter_facts import AdapterError
from modules.adapters.adapter_file import read_adapter_file, split_key
from modules.errors import CheckpointError
from modules.models.detection.families import FAMILIES
from modules.models.detection.files import (
    CHECKPOINTS,
    CONTROL,
    ENCODERS,
    IMAGE_ENCODERS,
    LORAS,
    TINY_VAES,
    Detected,
    detected,
)
from modules.models.detection.kinds import Kind, other_of, other_of_class, rows
from modules.models.detection.parts import held_encoder, vae_signs
from modules.models.files.header import Header, Stored
from modules.models.files.other_files import is_adapter_or_embedding
from modules.models.opening.checkpoint import open_checkpoint
from tests.models.detection.test_detection import FULL, LISTED, ROOT, family_name, full, look

RECORDED: Mapping[str, list[str]] = json.loads(Path(__file__).with_name("other_headers.json").read_text("utf-8"))
NAMED = {
    **{
        "LTXVideoTransformer3DModel": "LTX-Video",
        "LTX2VideoTransformer3DModel": "LTX-2",
        "WanTransformer3DModel": "Wan",
    },
    **{"CogVideoXTransformer3DModel": "CogVideoX", "CogView4Transformer2DModel": "CogView"},
    **{"Lumina2Transformer2DModel": "Lumina 2", "PixArtTransformer2DModel": "PixArt", "SanaTransformer2DModel": "Sana"},
    **{"HunyuanVideoTransformer3DModel": "HunyuanVideo", "HunyuanImageTransformer2DModel": "HunyuanImage 2.1"},
    **{"StableCascadeUNet": "Stable Cascade", "Kandinsky5Transformer3DModel": "Kandinsky 5"},
    **{"Ideogram4Transformer2DModel": "Ideogram 4"},
    **{"AllegroTransformer3DModel": "Allegro", "LongCatImageTransformer2DModel": "LongCat-Image"},
    **{"BriaTransformer2DModel": "Bria"},
    **{"AutoencoderKLMochi": "the VAE of Mochi", "AutoencoderKLLTXVideo": "the VAE of LTX-Video"},
    **{"UNetControlNetXSModel": "ControlNet-XS", "UNetSpatioTemporalConditionModel": "Stable Video Diffusion"},
}


READ = {"QwenImageControlNetModel": "a ControlNet for Qwen-Image"}


def recorded(name: str) -> dict[str, tuple[int, ...]]:
    pairs = (line.split(" ") for line in RECORDED[name])
    return {key: tuple(int(side) for side in sides.split("x") if side) for key, sides in pairs}


def as_stored(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Stored]:
    return {key: Stored(shape, "BF16") for key, shape in shapes.items()}


def test_every_recorded_model_of_another_kind_is_called_by_its_name() -> None:
    failed = []
    for name in RECORDED:
        found = look(recorded(name))
        if name in READ:
            assert (found.what, found.refusal) == (READ[name], "")
            continue
        said = NAMED.get(name)
        if not found.refusal or "no known" in found.refusal or (said and f"is {said}, " not in found.refusal):
            failed.append((name, found.refusal))
    assert failed == []
    assert len(RECORDED) > 60


@pytest.mark.parametrize("prefix", ["model.diffusion_model.", "transformer.", "net."])
def test_the_names_before_the_tensors_change_nothing(prefix: str) -> None:
    for name in ("WanTransformer3DModel", "SanaTransformer2DModel", "MochiTransformer3DModel"):
        plain = look(recorded(name)).refusal
        assert plain and look({f"{prefix}{key}": shape for key, shape in recorded(name).items()}).refusal == plain


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("vace_blocks.0.after_proj.weight", "patch_embedding.weight"), "Wan-VACE, a video"),
        (("blocks.0.mlp.inverted_conv.conv.weight", "attention_y_norm.weight"), "Sana, which"),
        (("double_stream_blocks.0.block.adaLN_modulation.1.weight",), "HiDream"),
        (("nerf_blocks.0.param_generator.weight", "distilled_guidance_layer.in_proj.weight"), "Chroma1-Radiance"),
        (("audio_patchify_proj.weight", "patchify_proj.weight", "adaln_single.linear.weight"), "LTX-2"),
        (("decoder.upsamples.0.upsamples.0.residual.0.gamma", "decoder.conv1.weight"), "the VAE of Wan 2.2"),
        (("encoder.layers.0.self_attention.query_key_value.weight",), "ChatGLM"),
        (("model.layers.0.pre_feedforward_layernorm.weight", "model.embed_tokens.weight"), "Gemma"),
    ],
)
def test_original_names_are_known_too(names: tuple[str, ...], said: str) -> None:
    assert said in look(dict.fromkeys(names, (8, 8))).refusal


def test_nothing_that_is_supported_is_another_kind() -> None:
    for name in {*FULL, *LISTED}:
        assert other_of(as_stored(full(name))) is None, name
        assert look(full(name)).refusal == "", name


def test_classes_of_diffusers_name_folders(tmp_path: Path) -> None:
    for name, said in (
        *(("LTXPipeline", "LTX-Video"), ("LTX2VideoTransformer3DModel", "LTX-2"), ("WanPipeline", "Wan")),
        *(
            ("PixArtSigmaPipeline", "PixArt"),
            ("Lumina2Pipeline", "Lumina 2"),
            ("StableCascadeDecoderPipeline", "Stable"),
        ),
    ):
        row = other_of_class(name)
        assert row is not None and row.name.startswith(said)
    for name in ("StableDiffusionPipeline", "FluxPipeline", "QwenImagePipeline", "ZImagePipeline", "AnimaPipeline"):
        assert other_of_class(name) is None
    for part in ("transformer", "prior"):
        folder = tmp_path / part
        (folder / part).mkdir(parents=True)
        save_file({"something.weight": torch.zeros(2, 2)}, folder / part / "diffusion_pytorch_model.safetensors")
        (folder / "model_index.json").write_text('{"_class_name": "PixArtSigmaPipeline"}')
        with pytest.raises(CheckpointError, match="is PixArt, which is not supported"), open_checkpoint(folder):
            pass


def test_rows_are_distinct_and_whole() -> None:
    names = [(row.group, row.name) for row in rows()]
    assert len(set(names)) == len(names) > 100
    assert all(all(signs) for row in rows() for signs in row.signs)
    families = {family.name for family in FAMILIES}
    assert {row.name for row in rows() if row.group is Kind.LORA and row.is_read} == families - {
        *("sdxl_refiner", "flux1_schnell")  # whose adapters are those of another family
    }
    assert {row.family for row in rows()} - {""} <= families


# -- ours, where they belong -------------------------------------------------------------------------------------------


def sees(table: str, **more: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """A language model with a vision tower."""
    return {
        f"{table}embed_tokens.weight": (99, 2560),
        f"{table}layers.0.self_attn.q_proj.weight": (8, 2560),
        f"{table}layers.0.mlp.gate_proj.weight": (8, 2560),
        **more,
    }


PLACES: Mapping[str, tuple[Mapping[str, tuple[int, ...]], str]] = {
    "Qwen2.5-VL": (
        {
            **sees("model.", **{"visual.patch_embed.proj.weight": (1280, 3, 2, 14, 14), "lm_head.weight": (99, 2560)}),
            "model.layers.0.self_attn.q_proj.bias": (8,),
        },
        ENCODERS,
    ),
    "Qwen3-VL": (
        {
            **sees("model.language_model.", **{"model.visual.patch_embed.proj.weight": (1024, 3, 2, 16, 16)}),
            "model.language_model.layers.0.self_attn.q_norm.weight": (128,),
        },
        ENCODERS,
    ),
    "Anima": (
        {
            "net.blocks.0.self_attn.q_proj.weight": (2048, 2048),
            "net.llm_adapter.embed.weight": (9, 9),
            "net.x_embedder.proj.1.weight": (9, 9),
            "net.t_embedder.1.linear_1.weight": (9, 9),
        },
        CHECKPOINTS,
    ),
    "IP-adapter": ({"image_proj.proj.weight": (9, 9), "ip_adapter.1.to_k_ip.weight": (9, 9)}, CONTROL),
    "IP-adapter Plus": ({"image_proj.latents": (1, 9, 9), "ip_adapter.1.to_k_ip.weight": (9, 9)}, CONTROL),
    "T2I-adapter": ({"adapter.body.0.resnets.0.block1.weight": (9, 9), "adapter.conv_in.weight": (9, 9)}, CONTROL),
    "T2I-adapter, original": ({"body.0.block1.weight": (9, 9, 3, 3), "conv_in.weight": (9, 9, 3, 3)}, CONTROL),
    "Z-Image control": (
        {"control_all_x_embedder.2-1.weight": (9, 9), "control_layers.0.attention.to_q.weight": (9, 9)},
        CONTROL,
    ),
    "CLIP-ViT-H": (
        {
            "vision_model.embeddings.class_embedding": (1280,),
            "vision_model.encoder.layers.0.self_attn.q_proj.weight": (9, 9),
            "visual_projection.weight": (9, 9),
        },
        IMAGE_ENCODERS,
    ),
    "SigLIP": (
        {
            "text_model.embeddings.token_embedding.weight": (9, 1152),
            "text_model.final_layer_norm.weight": (1152,),
            "text_model.encoder.layers.0.self_attn.q_proj.weight": (9, 9),
            "vision_model.encoder.layers.0.self_attn.q_proj.weight": (9, 9),
            "vision_model.head.probe": (1, 1, 1152),
        },
        IMAGE_ENCODERS,
    ),
    "XLabs LoRA": ({"double_blocks.0.processor.proj_lora1.down.weight": (4, 9)}, LORAS),
    "LoRA of 2023": (
        {"unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.processor.to_q_lora.down.weight": (4, 9)},
        LORAS,
    ),
    "LoRA of 2023, layers": ({"down_blocks.0.attentions.0.attn1.to_q.lora.down.weight": (4, 9)}, LORAS),
    "TAESD": ({"1.weight": (64, 4, 3, 3), "3.conv.0.weight": (64, 64, 3, 3)}, TINY_VAES),
    "TAESD of diffusers": (
        {"decoder.layers.0.weight": (64, 4, 3, 3), "decoder.layers.3.conv.0.weight": (64, 64, 3, 3)},
        TINY_VAES,
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_files_go_into_their_folders(name: str) -> None:
    shapes, folder = PLACES[name]
    found = look(shapes)
    assert (found.folder, found.refusal) == (folder, "")
    if name == "Anima":
        assert family_name(found) == "anima"


def test_adapters_of_all_trainers_are_no_checkpoints(tmp_path: Path) -> None:
    for name, (shapes, folder) in PLACES.items():
        path = tmp_path / f"{name}.safetensors"
        save_file({key: torch.zeros(*(min(side, 9) for side in shape)) for key, shape in shapes.items()}, path)
        assert is_adapter_or_embedding(path) == (folder == LORAS), name


def test_language_models_with_eyes_come_in_gguf_too() -> None:
    for architecture, folder in (("qwen2vl", ENCODERS), ("qwen3vl", ENCODERS), ("cosmos", CHECKPOINTS)):
        found = detected(Header("gguf", metadata={"general.architecture": architecture}))
        assert (found.folder, found.refusal) == (folder, "")


def test_umt5_is_no_t5_and_video_vaes_are_no_vaes() -> None:
    table = {"shared.weight": Stored((256384, 4096), "F16")}
    umt5 = {**table, "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight": Stored((32, 64), "F16")}
    assert held_encoder(umt5) is None and held_encoder(table) is not None
    assert "UMT5-XXL, the text encoder of Wan" in detected(Header("safetensors", umt5)).refusal
    for name in ("AutoencoderKLTemporalDecoder", "AsymmetricAutoencoderKL", "VQModel", "AutoencoderKLAllegro"):
        assert vae_signs(as_stored(recorded(name))) is None, name


def test_attention_processors_before_peft_are_layers() -> None:
    name = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.processor.to_out_lora"
    assert split_key(f"{name}.up.weight") == (name, "lora.up.weight")


def test_a_control_lora_of_flux_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "canny.safetensors"
    names = ("img_in.lora_A.weight", "img_in.lora_B.weight", "double_blocks.0.img_attn.proj.lora_B.bias")
    save_file({name: torch.zeros(4, 4) for name in names}, path)
    with pytest.raises(AdapterError, match=r"is a control LoRA of FLUX\.1, which belongs into models/ControlNet"):
        read_adapter_file(path)


# -- properties and costs ----------------------------------------------------------------------------------------------


def kind(found: Detected) -> tuple[str, str]:
    return found.folder, family_name(found)


@pytest.mark.parametrize(
    "name", ["flux1-dev", "z-image", "chroma1", "te-t5xxl", "te-clip-l", "te-qwen2.5-vl-7b", "vae-flux1"]
)
def test_one_tensor_changed_never_changes_the_kind_silently(name: str) -> None:
    shapes, drawn = dict(full(name)), random.Random(name)
    before = kind(look(shapes))
    for key in drawn.sample(sorted(shapes), 25):
        others_of = {other: shape for other, shape in shapes.items() if other != key}
        for changed in (others_of, {**others_of, f"odd.{key}": shapes[key]}, {**shapes, key: (*shapes[key], 3)}):
            found = look(changed)
            # the sign of a family itself may be gone: then the file is no model of another kind
            assert kind(found) in (before, (before[0], "")) or found.refusal, key
            assert re.search(r"\bError\b|list index", found.refusal) is None


COST = """
import json, sys
from pathlib import Path
from modules.models.detection.files import detected
from modules.models.files.file_header import header_of
paths = sorted(Path(sys.argv[1]).iterdir())
detected(header_of(paths[0]))
before = int(next(line for line in open('/proc/self/io') if line.startswith('rchar')).split()[1])
for path in paths:
    assert detected(header_of(path)).family is not None
after = int(next(line for line in open('/proc/self/io') if line.startswith('rchar')).split()[1])
print(json.dumps([after - before, 'torch' in sys.modules]))
"""


def test_kind_and_family_cost_little_and_no_torch(tmp_path: Path) -> None:
    """Of each file of a folder less than a megabyte is read."""
    shapes, at = full("z-image"), 0
    table = {}
    for key, shape in shapes.items():
        table[key] = {"dtype": "F8_E4M3", "shape": [1 for _ in shape] or [1], "data_offsets": [at, at + 1]}
        at += 1
    raw = json.dumps(table).encode()
    for number in range(20):
        (tmp_path / f"{number}.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(at))
    command = [sys.executable, "-c", COST, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    read_bytes, has_torch = json.loads(done.stdout)
    assert not has_torch and 0 < read_bytes / 20 < 1_000_000
