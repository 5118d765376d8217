"""ControlNets of transformers, and FLUX.1's control LoRAs: what a pass predicts with one is what diffusers' modules
predict, in fp32."""

import base64
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    FluxControlNetModel,
    FluxControlNetPipeline,
    FluxTransformer2DModel,
    QwenImageControlNetModel,
    SD3ControlNetModel,
    ZImageControlNetModel,
)
from diffusers.models.embeddings import ImageProjection, apply_rotary_emb
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection, SiglipVisionConfig, SiglipVisionModel

from modules.errors import CheckpointError, FeatherweightError, InvalidValueError
from modules.models.families.denoiser_context import DenoiserContext, ModelInputs
from modules.models.families.flux1.layout import TABLE
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.modules_catalogue import ModuleCatalogue
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.request.model_use import ModelCall, ModelUse, PassFacts
from modules.scripts.program import Program
from modules.settings.values import Settings
from tests.extensions import built_in
from tests.models.dit_files import write_split
from tests.models.dit_models import TINY, original_tensors, write_parts
from tests.models.family_files import write_family
from tests.processing.test_qwen_image import modules as qwen_modules
from tests.processing.test_qwen_image import write_qwen_image
from tests.recordings import CONFIGS, cpu_machine
from tests.scripts.test_control_nets import library, random_weights
from tests.thorough import thoroughly, usually

SIDE, ROWS = 8, 2
FILES = {
    **{"qwen": "qwen_image.safetensors", "flux": "model.safetensors", "sd3": "sd3.5.safetensors"},
    "z_image": "z_image_tiny.safetensors",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("transformers")
    write_split(root, "zimage-turbo-cfg1")
    write_parts(root, TINY["dev"])
    write_family(root / "Stable-diffusion", "sd3.5")
    write_qwen_image(root, qwen_modules())
    return root


@pytest.fixture(scope="module")
def engine(root: Path) -> Iterator[Engine]:
    built_in()
    catalogue = CheckpointCatalogue([root / "Stable-diffusion"], HashCache(root / "hashes.json"))
    modules = ModuleCatalogue([root / "text_encoder", root / "VAE"])
    engine = Engine(catalogue, CONFIGS, cpu_machine, models=ExtraModels(modules=modules))
    yield engine
    engine.close()


def model_of(engine: Engine, family: str, **settings: Any) -> Any:
    return engine.model(FILES[family], PrecisionOptions.of(Settings().with_changes(settings)))


def inputs_of(model: Any, rows: int = ROWS) -> ModelInputs:
    torch.manual_seed(4)
    found: ModelInputs = model.family.example_inputs(
        model.unet, (rows, SIDE, SIDE), torch.float32, lambda shape, dtype: torch.randn(shape, dtype=dtype)
    )
    times = torch.full((rows,), 500.0)
    return ModelInputs(found.x, times, found.crossattn, found.vector, found.extra, found.mask)


def picture() -> "np.ndarray[Any, np.dtype[np.uint8]]":
    return np.random.default_rng(2).integers(0, 256, (8 * SIDE, 8 * SIDE, 3), np.uint8)


def hint_of(model: Any) -> Tensor:
    """The picture as scaled latents."""
    pixels = torch.from_numpy(picture()).permute(2, 0, 1)[None].float() / 127.5 - 1.0
    latents: Tensor = model.encode(pixels)
    return latents


def controlled(
    engine: Engine,
    model: Any,
    path: Path,
    inputs: ModelInputs,
    painted: Any = None,
    program: Any = None,
    negative: Any = (False,) * ROWS,
    **unit: Any,
) -> Tensor:
    """What the model predicts with a unit around it; `painted` [H,W,1] is the mask of an inpaint map, `negative` says
    which rows are for negative prompts."""
    facts = PassFacts(("",), ("",), (8 * SIDE, 8 * SIDE), 4, 1.0)
    use = ModelUse(model, facts, lambda *_: None, lambda _: None, engine.auxiliary)
    values = library("reading").read_unit({"model": path.stem, **unit}, "unit 0")
    pixels = picture() if painted is None else np.concatenate([picture(), painted], axis=2)
    shown = library("maps").ControlMap(pixels, values.resize_mode)
    each = SimpleNamespace(
        unit=values,
        map=shown,
        kind=library("files").kind_of_file(path),
        file=library("files").ModelFile(path),
        number=0,
        name="unit 0",
        size_px=facts.size_px,
        shown_maps={},
        is_reference=False,
        takes_part=lambda is_hires: True,
    )
    job = SimpleNamespace(settings=Settings(), iteration=0, width=8 * SIDE, height=8 * SIDE)
    rows = len(inputs.x)
    with use.undo, torch.no_grad(), use.calling(ModelCall(tuple(range(rows)), negative, 0, 4)):
        library("passes").begin_pass([each], job, use, program)
        context = DenoiserContext(inputs.crossattn, inputs.vector, None, inputs.extra, inputs.mask)
        found: Tensor = model.predict(inputs.x, inputs.timesteps, context)
        return found


def with_extra(model: Any, inputs: ModelInputs, extra: Mapping[str, Any]) -> Tensor:
    """What the model predicts with these arguments."""
    whole = ModelInputs(
        inputs.x, inputs.timesteps, inputs.crossattn, inputs.vector, {**inputs.extra, **extra}, inputs.mask
    )
    with torch.no_grad():
        found: Tensor = model.family.denoiser.run(model.unet, whole)
        return found


def saved(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
    return path


def same(ours: Tensor, theirs: Tensor, plain: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert (theirs - plain).abs().max() > 1e-2


FLUX_FORMS: dict[str, dict[str, Any]] = {
    "InstantX": {"num_layers": 2, "num_single_layers": 1, "guidance_embeds": True},
    "union": {"num_layers": 1, "num_single_layers": 0, "guidance_embeds": True, "num_mode": 10},
    "XLabs": {"num_layers": 1, "num_single_layers": 0, "guidance_embeds": True, "patch_size": 2,
              "conditioning_embedding_channels": 16},
    "Alimama": {"num_layers": 1, "num_single_layers": 0, "guidance_embeds": True},
}  # fmt: skip


def flux_net(form: str, model: Any) -> Any:
    config = model.unet.config
    net = FluxControlNetModel(
        attention_head_dim=config.attention_head_dim,
        num_attention_heads=config.num_attention_heads,
        joint_attention_dim=config.joint_attention_dim,
        pooled_projection_dim=config.pooled_projection_dim,
        axes_dims_rope=config.axes_dims_rope,
        **FLUX_FORMS[form],
    )
    if form == "Alimama":  # its own class adds 4 channels of the mask to diffusers'
        net.controlnet_x_embedder = torch.nn.Linear(64 + 4, net.inner_dim)
    return random_weights(net)


@pytest.mark.parametrize(
    ("form", "layout"),
    [
        *((form, "diffusers") for form in FLUX_FORMS if form != "XLabs"),
        ("XLabs", "original"),
        thoroughly("XLabs", "diffusers"),
    ],
)
def test_flux(engine: Engine, tmp_path: Path, form: str, layout: str) -> None:
    model = model_of(engine, "flux")
    net, inputs = flux_net(form, model), inputs_of(model)
    tensors = net.state_dict()
    if layout == "original":
        beside = {key: tensors.pop(key) for key in list(tensors) if key.startswith("input_hint_block.")}
        tensors = original_tensors(library("flux_nets").ORIGINAL, tensors, "")
        for place, part in library("nets").HINT_CONVOLUTIONS.items():
            for leaf in ("weight", "bias"):
                tensors[f"input_hint_block.{place}.{leaf}"] = beside[f"input_hint_block.{part}.{leaf}"]
        assert "double_blocks.0.img_attn.qkv.weight" in tensors and "input_hint_block.14.bias" in tensors
    path = saved(tmp_path / "net.safetensors", tensors)
    takes_pixels, is_union = form == "XLabs", form == "union"
    image = torch.from_numpy(picture()).permute(2, 0, 1)[None].float() / 127.5 - 1.0
    mask = None
    if form == "Alimama":
        mask = np.zeros((8 * SIDE, 8 * SIDE, 1), np.uint8)
        mask[: 4 * SIDE, 8:] = 255
        masked = image.clone()
        masked[:, :, : 4 * SIDE, 8:] = -1
        kept = torch.ones(1, 1, SIDE, SIDE)
        kept[:, :, : SIDE // 2, 1:] = 0
        image = torch.cat([model.encode(masked), kept], dim=1)
        image = FluxControlNetPipeline._pack_latents(image, 1, 17, SIDE, SIDE)
    elif not takes_pixels:
        image = FluxControlNetPipeline._pack_latents(hint_of(model), 1, 16, SIDE, SIDE)
    pack = FluxControlNetPipeline._pack_latents(inputs.x, ROWS, 16, SIDE, SIDE)
    with torch.no_grad():
        double, single = net(
            pack,
            image.expand(ROWS, *image.shape[1:]),
            torch.full((ROWS, 1), 2) if is_union else None,
            conditioning_scale=0.7,
            encoder_hidden_states=inputs.crossattn,
            pooled_projections=inputs.vector,
            timestep=inputs.timesteps / 1000,
            img_ids=FluxControlNetPipeline._prepare_latent_image_ids(1, SIDE // 2, SIDE // 2, "cpu", torch.float32),
            txt_ids=torch.zeros(inputs.crossattn.shape[1], 3),
            guidance=inputs.extra["guidance"],
            return_dict=False,
        )
    extra = {
        "controlnet_block_samples": double,
        "controlnet_single_block_samples": single,
        "controlnet_blocks_repeat": takes_pixels,
    }
    kind = {"union_control_type": "Depth"} if is_union else {}
    if mask is not None:
        with pytest.raises(CheckpointError, match="is for inpainting and takes a mask"):
            controlled(engine, model, path, inputs)
        kind = {"module": "inpaint_global_harmonious"}
    ours = controlled(engine, model, path, inputs, mask, weight=0.7, **kind)
    same(ours, with_extra(model, inputs, extra), with_extra(model, inputs, {}))
    if is_union:
        with pytest.raises(InvalidValueError, match="union_control_type to one of: Hard Edge"):
            controlled(engine, model, path, inputs)


def control_lora(model: Any, rank: int = 4) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A file of a control LoRA, and what the model's weights are with it at half of its strength, in diffusers'
    names."""
    torch.manual_seed(6)
    originals = original_tensors(TABLE, model.unet.state_dict(), "")
    lora, whole = dict[str, Tensor](), dict[str, Tensor]()
    for name, weight in originals.items():
        whole[name] = weight
        if name.endswith(".scale"):
            whole[name] = lora[name] = torch.rand_like(weight) + 0.5
        elif name.endswith(".weight"):
            stem = name.removesuffix(".weight")
            width = weight.shape[1] * (1 + (stem == "img_in"))
            down, up = torch.randn(rank, width) / width**0.5, torch.randn(len(weight), rank) / rank
            lora |= {f"{stem}.lora_A.weight": down, f"{stem}.lora_B.weight": up}
            lora[f"{stem}.lora_B.bias"] = torch.randn(len(weight)) * 0.1
            padded = torch.nn.functional.pad(weight, (0, width - weight.shape[1]))
            whole[name] = padded + 0.5 * up @ down
    for name in [name for name in originals if name.endswith(".bias")]:
        whole[name] = whole[name] + 0.5 * lora[f"{name.removesuffix('.bias')}.lora_B.bias"]
    header: Any = whole
    sources = TABLE.row_map(header, "", model.unet.inner_dim).sources
    parts = {
        ours: torch.cat([whole[source.key][first:last] for first, last in source.rows or ((0, None),)])
        for ours, source in sources.items()
    }
    return lora, parts


def test_flux_control_lora(engine: Engine, tmp_path: Path) -> None:
    model = model_of(engine, "flux")
    inputs, (lora, whole) = inputs_of(model), control_lora(model)
    path = saved(tmp_path / "canny.safetensors", lora)
    theirs = FluxTransformer2DModel.from_config({**model.unet.config, "in_channels": 128, "out_channels": 64})
    theirs.load_state_dict(whole)
    pack = FluxControlNetPipeline._pack_latents
    seen = torch.cat([inputs.x, hint_of(model).expand(ROWS, -1, -1, -1)])
    with torch.no_grad():
        (tokens,) = theirs.eval()(
            torch.cat([pack(part, ROWS, 16, SIDE, SIDE) for part in seen.chunk(2)], dim=2),
            encoder_hidden_states=inputs.crossattn,
            pooled_projections=inputs.vector,
            timestep=inputs.timesteps / 1000,
            img_ids=FluxControlNetPipeline._prepare_latent_image_ids(1, SIDE // 2, SIDE // 2, "cpu", torch.float32),
            txt_ids=torch.zeros(inputs.crossattn.shape[1], 3),
            guidance=inputs.extra["guidance"],
            return_dict=False,
        )
    expected = FluxControlNetPipeline._unpack_latents(tokens, 8 * SIDE, 8 * SIDE, 8)
    plain = with_extra(model, inputs, {})
    same(controlled(engine, model, path, inputs, weight=0.5), expected, plain)
    torch.testing.assert_close(with_extra(model, inputs, {}), plain, atol=0, rtol=0)
    stored = model_of(engine, "flux", fp8_storage="Enable", fp8_format="int8_row", stream_weights="Layers")
    found = controlled(engine, stored, path, inputs, weight=0.5)
    assert float((found - expected).norm() / expected.norm()) < 0.1
    assert engine.auxiliaries.here[-1].streaming is not None
    with pytest.raises(CheckpointError, match=r"is a control LoRA of FLUX\.1, and the model is of"):
        controlled(engine, model_of(engine, "sd3"), path, inputs_of(model_of(engine, "sd3")))


CLIP = {
    **{"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 1},
    **{"image_size": 28, "patch_size": 14},
}


def clip_file(folder: Path) -> Any:
    torch.manual_seed(7)
    encoder = CLIPVisionModelWithProjection(CLIPVisionConfig(projection_dim=24, hidden_act="gelu", **CLIP)).eval()
    (folder / "clip_vision").mkdir(exist_ok=True)
    of_texts = {"text_model.final_layer_norm.weight": torch.ones(4), "logit_scale": torch.ones(1)}  # of a whole CLIP
    saved(folder / "clip_vision" / "clip_vitl.safetensors", {**encoder.state_dict(), **of_texts})
    return encoder


def test_flux_ip_adapter_of_xlabs(engine: Engine, tmp_path: Path) -> None:
    """Also a negative row, which sees the tokens of no image, as diffusers' pipeline gives them."""
    model = model_of(engine, "flux")
    inputs, encoder = inputs_of(model), clip_file(tmp_path)
    width, context = model.unet.inner_dim, model.unet.config.joint_attention_dim
    torch.manual_seed(8)
    projection = random_weights(ImageProjection(24, context, num_image_text_embeds=4))
    file = {
        f"ip_adapter_proj_model.{name.replace('image_embeds', 'proj')}": tensor
        for name, tensor in projection.state_dict().items()
    }
    parts = dict[str, Tensor]()
    for place in range(len(model.unet.transformer_blocks)):
        for part in "kv":
            weight, bias = torch.randn(width, context) / context**0.5, torch.randn(width) * 0.1
            stem = f"double_blocks.{place}.processor.ip_adapter_double_stream_{part}_proj"
            file |= {f"{stem}.weight": weight, f"{stem}.bias": bias}
            parts |= {f"{place}.to_{part}_ip.weight": weight, f"{place}.to_{part}_ip.bias": bias}
    path = saved(tmp_path / "ip.safetensors", file)
    program = Program(folders=lambda name: (tmp_path / name,))
    theirs = FluxTransformer2DModel.from_config(model.unet.config)
    theirs.load_state_dict(model.unet.state_dict())
    projected = {name.replace("image_embeds", "proj"): tensor for name, tensor in projection.state_dict().items()}
    theirs._load_ip_adapter_weights([{"ip_adapter": parts, "image_proj": projected}], low_cpu_mem_usage=False)
    for processor in theirs.attn_processors.values():
        if hasattr(processor, "scale"):
            processor.scale = [0.7]
    pack = FluxControlNetPipeline._pack_latents
    with torch.no_grad():
        pixels = library("ip_adapter").preprocessed(picture(), None, 28)
        embedding = encoder(pixels).image_embeds
        both = torch.stack([embedding[0], torch.zeros_like(embedding[0])])[:, None]
        (tokens,) = theirs.eval()(
            pack(inputs.x, ROWS, 16, SIDE, SIDE),
            encoder_hidden_states=inputs.crossattn,
            pooled_projections=inputs.vector,
            timestep=inputs.timesteps / 1000,
            img_ids=FluxControlNetPipeline._prepare_latent_image_ids(1, SIDE // 2, SIDE // 2, "cpu", torch.float32),
            txt_ids=torch.zeros(inputs.crossattn.shape[1], 3),
            guidance=inputs.extra["guidance"],
            joint_attention_kwargs={"ip_adapter_image_embeds": [both]},
            return_dict=False,
        )
    expected = FluxControlNetPipeline._unpack_latents(tokens, 8 * SIDE, 8 * SIDE, 8)
    unit = {"module": "ip-adapter-auto", "weight": 0.7, "program": program}
    ours = controlled(engine, model, path, inputs, negative=(False, True), **unit)
    same(ours, expected, with_extra(model, inputs, {}))
    region = np.zeros((8 * SIDE, 8 * SIDE), np.uint8)
    nowhere = base64.b64encode(_png(region)).decode()
    masked = controlled(engine, model, path, inputs, effective_region_mask=nowhere, **unit)
    torch.testing.assert_close(masked, with_extra(model, inputs, {}), atol=1e-6, rtol=1e-6)


class InstantX:
    """An attention processor that computes as InstantX's adapter says: what the image's tokens give is added to the
    attention, before the layer's output."""

    def __init__(self, tokens: Tensor, key: Tensor, value: Tensor, scale: float) -> None:
        self.tokens, self.key, self.value, self.scale = tokens, key, value, scale

    def __call__(
        self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Any, attention_mask: Any, image_rotary_emb: Any
    ) -> Any:
        def heads(x: Tensor) -> Tensor:
            return x.reshape(len(x), -1, attn.heads, x.shape[-1] // attn.heads)

        q, k, v = (heads(layer(hidden_states)) for layer in (attn.to_q, attn.to_k, attn.to_v))
        q, k = attn.norm_q(q), attn.norm_k(k)
        key, value = heads(self.tokens @ self.key.T), heads(self.tokens @ self.value.T)
        key = key / (key.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        weights = (torch.einsum("bqhc,bkhc->bhqk", q, key) / q.shape[-1] ** 0.5).softmax(-1)
        image = torch.einsum("bhqk,bkhc->bqhc", weights, value).flatten(2)
        count = 0
        if encoder_hidden_states is not None:
            count = encoder_hidden_states.shape[1]
            layers = (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
            aq, ak, av = (heads(layer(encoder_hidden_states)) for layer in layers)
            q, k = torch.cat([attn.norm_added_q(aq), q], 1), torch.cat([attn.norm_added_k(ak), k], 1)
            v = torch.cat([av, v], 1)
        q, k = (apply_rotary_emb(part, image_rotary_emb, sequence_dim=1) for part in (q, k))
        weights = (torch.einsum("bqhc,bkhc->bhqk", q, k) / q.shape[-1] ** 0.5).softmax(-1)
        found = torch.einsum("bhqk,bkhc->bqhc", weights, v).flatten(2)
        own = found[:, count:] + self.scale * image
        return own if not count else (attn.to_out[0](own), attn.to_add_out(found[:, :count]))


def test_flux_ip_adapter_of_instantx(engine: Engine, tmp_path: Path) -> None:
    """With SigLIP's vision model, in all blocks."""
    model = model_of(engine, "flux")
    inputs, width, context = inputs_of(model), model.unet.inner_dim, model.unet.config.joint_attention_dim
    sizes = {"hidden_size": 72, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 1}
    torch.manual_seed(7)
    encoder = random_weights(SiglipVisionModel(SiglipVisionConfig(image_size=28, patch_size=14, **sizes)))
    (tmp_path / "clip_vision").mkdir()
    names = {f"vision_model.{name}": tensor for name, tensor in encoder.state_dict().items()}
    saved(tmp_path / "clip_vision" / "sigclip_vision_patch14_384.safetensors", names)
    projection = random_weights(
        torch.nn.Sequential(torch.nn.Linear(72, 144), torch.nn.GELU(), torch.nn.Linear(144, 6 * context))
    )
    norm = random_weights(torch.nn.LayerNorm(context))
    file = {f"image_proj.proj.{name}": tensor for name, tensor in projection.state_dict().items()}
    file |= {f"image_proj.norm.{name}": tensor for name, tensor in norm.state_dict().items()}
    theirs = FluxTransformer2DModel.from_config(model.unet.config)
    theirs.load_state_dict(model.unet.state_dict())
    pack = FluxControlNetPipeline._pack_latents
    with torch.no_grad():
        pixels = library("ip_adapter").preprocessed(picture(), None, 28, (0.5,) * 3, (0.5,) * 3)
        tokens = norm(projection(encoder(pixels).pooler_output).reshape(1, 6, context))
        processors = {}
        for place, name in enumerate(theirs.attn_processors):
            key, value = (torch.randn(width, context) / context**0.5 for _ in range(2))
            file |= {f"ip_adapter.{place}.to_k_ip.weight": key, f"ip_adapter.{place}.to_v_ip.weight": value}
            processors[name] = InstantX(tokens.expand(ROWS, -1, -1), key, value, 0.7)
        theirs.set_attn_processor(processors)
        (found,) = theirs.eval()(
            pack(inputs.x, ROWS, 16, SIDE, SIDE),
            encoder_hidden_states=inputs.crossattn,
            pooled_projections=inputs.vector,
            timestep=inputs.timesteps / 1000,
            img_ids=FluxControlNetPipeline._prepare_latent_image_ids(1, SIDE // 2, SIDE // 2, "cpu", torch.float32),
            txt_ids=torch.zeros(inputs.crossattn.shape[1], 3),
            guidance=inputs.extra["guidance"],
            return_dict=False,
        )
    path = saved(tmp_path / "ip.safetensors", file)
    expected = FluxControlNetPipeline._unpack_latents(found, 8 * SIDE, 8 * SIDE, 8)
    program = Program(folders=lambda name: (tmp_path / name,))
    ours = controlled(engine, model, path, inputs, program=program, module="ip-adapter-auto", weight=0.7)
    same(ours, expected, with_extra(model, inputs, {}))


def _png(pixels: Any) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


@pytest.mark.parametrize("form", ["InstantX", thoroughly("Stability AI"), "Stability AI canny"])
def test_sd3(engine: Engine, tmp_path: Path, form: str) -> None:
    model = model_of(engine, "sd3")
    config, inputs = model.unet.config, inputs_of(model)
    is_own = form == "InstantX"
    net = random_weights(
        SD3ControlNetModel(
            sample_size=config.sample_size,
            num_layers=2,
            attention_head_dim=config.attention_head_dim,
            num_attention_heads=config.num_attention_heads,
            joint_attention_dim=config.joint_attention_dim if is_own else None,
            caption_projection_dim=config.caption_projection_dim,
            pooled_projection_dim=config.pooled_projection_dim,
            pos_embed_max_size=config.pos_embed_max_size,
            use_pos_embed=is_own,
            qk_norm="rms_norm" if is_own else None,
        )
    )
    tensors = net.state_dict()
    if not is_own:
        tensors = stability_names(tensors)
        if form.endswith("canny"):
            tensors["control_type"] = torch.tensor([1.0])
    path = saved(tmp_path / "net.safetensors", tensors)
    pixels = torch.from_numpy(picture()).permute(2, 0, 1)[None].float() / 255
    image = model.encode(pixels * 127.5 + 0.5 if form.endswith("canny") else pixels * 2 - 1)
    if is_own:  # the networks of the same blocks as the model's see latents without its shift
        image = image + model.autoencoder.shift * model.autoencoder.scale_factor
    with torch.no_grad():
        (blocks,) = net(
            inputs.x if is_own else model.unet.pos_embed(inputs.x),
            image.expand(ROWS, *image.shape[1:]),
            0.7,
            inputs.crossattn if is_own else None,
            torch.zeros_like(inputs.vector) if is_own and inputs.vector is not None else inputs.vector,
            inputs.timesteps,
            return_dict=False,
        )
    ours = controlled(engine, model, path, inputs, weight=0.7)
    theirs = with_extra(model, inputs, {"block_controlnet_hidden_states": blocks})
    same(ours, theirs, with_extra(model, inputs, {}))


STABILITY = {
    "timestep_embedder.linear_1": "t_embedder.mlp.0",
    "timestep_embedder.linear_2": "t_embedder.mlp.2",
    "text_embedder.linear_1": "y_embedder.mlp.0",
    "text_embedder.linear_2": "y_embedder.mlp.2",
}


def stability_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of what diffusers' script for these files does."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        words = {"attn.to_out.0": "attn.proj", "ff.net.0.proj": "mlp.fc1", "ff.net.2": "mlp.fc2"}
        key = name.replace("norm1.linear", "adaLN_modulation.1")
        for ours, theirs in words.items():
            key = key.replace(ours, theirs)
        for ours, theirs in STABILITY.items():
            key = key.replace(f"time_text_embed.{ours}", theirs)
        if ".attn.to_q." in key:
            parts = [tensors[name.replace("to_q", f"to_{letter}")] for letter in "qkv"]
            found[key.replace("to_q", "qkv")] = torch.cat(parts)
        elif ".attn.to_k." not in key and ".attn.to_v." not in key:
            found[key] = tensor
    return found


Z_FORMS: dict[str, dict[str, Any]] = {
    "1": {"control_in_dim": 16, "add_control_noise_refiner": None},
    "2.0": {"control_in_dim": 33, "add_control_noise_refiner": "control_layers"},
    "2.1": {"control_in_dim": 33, "add_control_noise_refiner": "control_noise_refiner"},
}


@pytest.mark.parametrize("form", usually(Z_FORMS, lambda form: form != "2.0"))
def test_z_image(engine: Engine, tmp_path: Path, form: str) -> None:
    model = model_of(engine, "z_image")
    config, inputs = model.unet.config, inputs_of(model)
    refiners = list(range(len(model.unet.noise_refiner)))
    net = random_weights(
        ZImageControlNetModel(
            control_layers_places=list(range(len(model.unet.layers))),
            control_refiner_layers_places=refiners,
            dim=config.dim,
            n_refiner_layers=len(refiners),
            n_heads=config.n_heads,
            n_kv_heads=config.n_kv_heads,
            **Z_FORMS[form],
        )
    )
    path = saved(tmp_path / "net.safetensors", net.state_dict())
    ours = controlled(engine, model, path, inputs, weight=0.7)
    ZImageControlNetModel.from_transformer(net, model.unet)
    latents = hint_of(model)
    more = torch.zeros(1, net.config.control_in_dim - 16, SIDE, SIDE)
    image = torch.cat([latents, more], dim=1).unsqueeze(2)
    with torch.no_grad():
        blocks = net(
            list(inputs.x.unsqueeze(2)), 1 - inputs.timesteps / 1000, list(inputs.crossattn), [image[0]] * ROWS, 0.7
        )
    theirs = with_extra(model, inputs, {"controlnet_block_samples": blocks})
    same(ours, theirs, with_extra(model, inputs, {}))


@pytest.mark.parametrize("is_inpaint", [False, True])
def test_qwen_image(engine: Engine, tmp_path: Path, is_inpaint: bool) -> None:
    """Each output goes to half of the blocks; the network for inpainting sees a mask beside the latents."""
    model = model_of(engine, "qwen")
    config, inputs = model.unet.config, inputs_of(model)
    net = random_weights(
        QwenImageControlNetModel(
            num_layers=1,
            attention_head_dim=config.attention_head_dim,
            num_attention_heads=config.num_attention_heads,
            joint_attention_dim=config.joint_attention_dim,
            extra_condition_channels=4 if is_inpaint else 0,
        )
    )
    path = saved(tmp_path / "net.safetensors", net.state_dict())
    image, painted, unit = hint_of(model), None, {}
    if is_inpaint:
        painted = np.zeros((8 * SIDE, 8 * SIDE, 1), np.uint8)
        painted[: 4 * SIDE, 8:] = 255
        pixels = torch.from_numpy(picture()).permute(2, 0, 1)[None].float() / 127.5 - 1.0
        pixels[:, :, : 4 * SIDE, 8:] = -1
        kept = torch.ones(1, 1, SIDE, SIDE)
        kept[:, :, : SIDE // 2, 1:] = 0
        image, unit = torch.cat([model.encode(pixels), kept], dim=1), {"module": "inpaint_global_harmonious"}
    pack = FluxControlNetPipeline._pack_latents
    with torch.no_grad():
        blocks = net(
            pack(inputs.x, ROWS, 16, SIDE, SIDE),
            pack(image, 1, image.shape[1], SIDE, SIDE).expand(ROWS, -1, -1),
            conditioning_scale=0.7,
            encoder_hidden_states=inputs.crossattn,
            encoder_hidden_states_mask=inputs.mask,
            timestep=inputs.timesteps / 1000,
            img_shapes=[[(1, SIDE // 2, SIDE // 2)]] * ROWS,
            return_dict=False,
        )
    ours = controlled(engine, model, path, inputs, painted, weight=0.7, **unit)
    theirs = with_extra(model, inputs, {"controlnet_block_samples": blocks})
    same(ours, theirs, with_extra(model, inputs, {}))


def test_what_an_inpaint_map_keeps_is_kept(engine: Engine) -> None:
    """Flow models have no whole timesteps: their answers themselves are corrected."""
    model = model_of(engine, "z_image")
    facts = PassFacts(("",), ("",), (8 * SIDE, 8 * SIDE), 4, 1.0)
    use = ModelUse(model, facts, lambda *_: None, lambda _: None, engine.auxiliary)
    mask = np.zeros((8 * SIDE, 8 * SIDE, 1), np.uint8)
    mask[: 4 * SIDE] = 255
    unit = library("reading").read_unit({"module": "inpaint_only"}, "unit 0")
    each = SimpleNamespace(unit=unit, map=SimpleNamespace(masks_itself=False), number=0)
    library("latents").correct_predictions([each], use, {0: np.concatenate([picture(), mask], axis=2)})
    predicted = torch.randn(1, 16, SIDE, SIDE)
    with use.calling(ModelCall((0,), (False,), 0, 4), is_inside=True):
        kept = use.around(lambda x, sigma, context: predicted)(predicted, torch.ones(1), DenoiserContext(predicted))
    latents = hint_of(model)
    torch.testing.assert_close(kept[:, :, 5:], latents[:, :, 5:])
    torch.testing.assert_close(kept[:, :, :4], predicted[:, :, :4])


def test_a_net_is_stored_and_streamed_as_the_model_is(engine: Engine, tmp_path: Path) -> None:
    model = model_of(engine, "flux")
    path = saved(tmp_path / "net.safetensors", flux_net("InstantX", model).state_dict())
    inputs = inputs_of(model)
    plain = controlled(engine, model, path, inputs)
    streamed = controlled(engine, model_of(engine, "flux", stream_weights="Layers"), path, inputs)
    torch.testing.assert_close(streamed, plain, atol=1e-5, rtol=1e-5)
    assert engine.auxiliaries.here[-1].streaming is not None
    stored = model_of(engine, "flux", fp8_storage="Enable", fp8_format="fp8_e4m3fn_row")
    controlled(engine, stored, path, inputs)
    net = engine.auxiliaries.here[-1].module
    assert net.transformer_blocks[0].attn.to_q._parameters["weight"].dtype == torch.float8_e4m3fn
    assert net.x_embedder._parameters["weight"].dtype != torch.float8_e4m3fn


def test_a_net_of_another_family_is_a_sentence(engine: Engine, tmp_path: Path) -> None:
    path = saved(tmp_path / "net.safetensors", flux_net("InstantX", model_of(engine, "flux")).state_dict())
    model = model_of(engine, "sd3")
    with pytest.raises(CheckpointError, match=r"is a ControlNet for FLUX\.1, and the model is of the family"):
        controlled(engine, model, path, inputs_of(model))
    of_unets = saved(
        tmp_path / "t2i.safetensors", {"body.0.block1.weight": torch.zeros(1), "conv_in.weight": torch.zeros(1)}
    )
    with pytest.raises(FeatherweightError, match="another family"):
        controlled(engine, model, of_unets, inputs_of(model))
