"""The model and what it is asked: checkpoint, VAE, prompt handling, img2img."""

from modules.settings.group import SettingsGroup, choice, flag, many, number, text, whole
from modules.settings.setting import Section

MAX_CROP_PX = 4096

FULL, TINY = "Full", "TAESD"
"""Which autoencoder decodes or encodes: the model's own, or a tiny one for such latents."""
AUTOMATIC_REFERENCES, IDENTITY_EDIT = "Automatic", "Identity Edit"
AI_TOOLKIT, AI_TOOLKIT_CACHED = "AI Toolkit", "AI Toolkit (KV cache)"
"""How references are shown to Krea 2."""


class StableDiffusionSettings(SettingsGroup):
    """Checkpoints and how prompts are read."""

    section = Section(id="sd", title="Stable Diffusion", category="Stable Diffusion")

    sd_model_checkpoint = choice(
        "Stable Diffusion checkpoint", None, "checkpoints", optional=True, infotext="Model hash"
    )
    emphasis = choice(
        "Emphasis mode",
        "Original",
        ("None", "Ignore", "Original", "No norm"),
        infotext="Emphasis",
        hint="What (this:1.2) and [this] do. None: brackets are plain text; Ignore: brackets are removed; "
        "No norm: as Original, but the mean of the encoding is not restored afterwards.",
        affects_encoding=True,
    )
    enable_batch_seeds = flag("Make the same images in a batch as when making a single image", True, hidden=True)
    enable_prompt_comments = flag(
        "Enable comments", True, hint="The rest of a prompt line after # is ignored.", affects_encoding=True
    )
    comma_padding_backtrack = whole(
        "Prompt word wrap length limit",
        20,
        minimum=0,
        maximum=74,
        step=1,
        hint="In tokens: text after the last comma moves whole to the next chunk of 75 if it is shorter than this.",
        affects_encoding=True,
    )
    CLIP_stop_at_last_layers = whole(
        "Clip skip",
        1,
        minimum=1,
        maximum=12,
        step=1,
        infotext="Clip skip",
        hint="1: the last layer of the text encoder; 2: the second to last; and so on.",
        affects_encoding=True,
    )
    randn_source = choice(
        "Random number generator source",
        "GPU",
        ("GPU", "CPU", "NV"),
        infotext="RNG",
        hint="Decides the image of a seed. NV: what an NVIDIA GPU would draw, on any device.",
    )
    enable_quantization = flag(
        "Round the sigmas of samplers to the model's own",
        False,
        hint="For models whose noise schedule has steps; may sharpen, and changes old seeds.",
        affects_image=True,
    )
    tiling = flag("Tiling", False, infotext="Tiling", hint="Images whose opposite edges match.")
    hires_fix_refiner_pass = choice(
        "Hires fix: which pass to enable refiner for",
        "second pass",
        ("first pass", "second pass", "both passes"),
        infotext="Hires refiner",
    )
    upcast_attn = flag(
        "Upcast cross attention layer to float32",
        False,
        hint="Prevents black images in 16 bits; slower.",
        affects_image=True,
    )
    sd_checkpoints_limit = whole(
        "Maximum number of checkpoints loaded at the same time",
        1,
        minimum=1,
        maximum=10,
        step=1,
        hint="Switching back to a loaded one takes no time. If memory is short, the least recently used one is "
        "unloaded.",
    )
    sd_checkpoints_keep_in_cpu = flag("Only keep one model on device", True, hint="The others wait in main memory.")
    sd_checkpoints_ram_gb = number(
        "Maximum GB of main memory for idle checkpoints",
        0.0,
        minimum=0,
        maximum=512,
        step=0.5,
        hint="The least recently used one is unloaded first. 0: as much as is free.",
    )
    sd_checkpoints_vram_gb = number(
        "Maximum GB of device memory for idle checkpoints",
        0.0,
        minimum=0,
        maximum=512,
        step=0.5,
        hint="If more than one model is kept on the device. 0: as much as is free.",
    )
    sdxl_clip_l_skip = flag(
        "Clip skip SDXL",
        False,
        hint="Applies Clip skip to the first text encoder of SDXL too; otherwise its second to last layer is used.",
        affects_encoding=True,
    )


class SdxlSettings(SettingsGroup):
    """Settings for SDXL and its refiner alone."""

    section = Section(id="sdxl", title="Stable Diffusion XL", category="Stable Diffusion")

    sdxl_crop_top = whole("crop top coordinate", 0, minimum=0, maximum=MAX_CROP_PX, affects_encoding=True)
    sdxl_crop_left = whole("crop left coordinate", 0, minimum=0, maximum=MAX_CROP_PX, affects_encoding=True)
    sdxl_refiner_low_aesthetic_score = number(
        "SDXL low aesthetic score",
        2.5,
        minimum=0,
        maximum=10,
        hint="Used for refiner model negative prompt",
        affects_encoding=True,
    )
    sdxl_refiner_high_aesthetic_score = number(
        "SDXL high aesthetic score",
        6.0,
        minimum=0,
        maximum=10,
        hint="Used for refiner model prompt",
        affects_encoding=True,
    )


class Sd3Settings(SettingsGroup):
    """Settings for Stable Diffusion 3 alone."""

    section = Section(id="sd3", title="Stable Diffusion 3", category="Stable Diffusion")

    sd3_enable_t5 = flag(
        "Enable T5",
        False,
        infotext="T5",
        hint="The third text encoder, if its file and tokenizer exist; otherwise zeros replace it.",
        affects_encoding=True,
    )


class VaeSettings(SettingsGroup):
    """Which VAE is used, and how."""

    section = Section(id="vae", title="VAE", category="Stable Diffusion")

    sd_vae = choice(
        "SD VAE",
        "Automatic",
        "vaes",
        infotext="VAE",
        hint="Automatic: a VAE file named like the checkpoint, else the one inside the checkpoint.",
    )
    forge_additional_modules = many(
        "VAE / Text encoder",
        (),
        "modules",
        hint="Files with parts of the model: they replace parts of the checkpoint or add missing ones.",
        affects_image=True,
    )
    sd_vae_overrides_per_model_preferences = flag(
        "Selected VAE overrides per-model preferences",
        True,
        hint="Off: the VAE chosen here is only for checkpoints that have no VAE file of their own.",
        affects_image=True,
    )
    auto_vae_precision_bfloat16 = flag(
        "Automatically convert VAE to bfloat16",
        False,
        hint="If the VAE returns NaN in 16-bit floats; tried before 32 bits if both are on.",
        affects_image=True,
    )
    auto_vae_precision = flag(
        "Automatically revert VAE to 32-bit floats",
        True,
        hint="If the VAE returns NaN, the image is decoded again. --no-half-vae uses 32 bits from the start.",
        affects_image=True,
    )
    vae_tile_size = whole(
        "VAE tile size",
        0,
        minimum=0,
        maximum=4096,
        step=64,
        hint="Pixels per side; larger images are decoded in tiles: the same image, less GPU memory, slower. 0: only "
        "if memory runs out.",
        affects_image=True,
    )
    sd_vae_encode_method = choice(
        "VAE type for encode",
        FULL,
        (FULL, TINY),
        infotext="VAE Encoder",
        hint="Encodes images to latents: in hires fix with an upscaler that works on pixels. TAESD: as below.",
    )
    sd_vae_decode_method = choice(
        "VAE type for decode",
        FULL,
        (FULL, TINY),
        infotext="VAE Decoder",
        hint="TAESD: a tiny VAE in models/VAE-taesd: faster and with little memory, but less detail. The bundled "
        "model has one; others need taesd_decoder, taesdxl_decoder or taesd3_decoder (.safetensors or .pth) there.",
    )


class Img2ImgSettings(SettingsGroup):
    """Settings of what starts from an image, the second pass of hires fix among it."""

    section = Section(id="img2img", title="img2img", category="Stable Diffusion")

    img2img_extra_noise = number(
        "Extra noise multiplier for img2img and hires fix",
        0.0,
        minimum=0,
        maximum=1,
        step=0.01,
        infotext="Extra noise",
        hint="0: none. Adds detail to the second pass.",
    )
    inpainting_mask_weight = number(
        "Inpainting conditioning mask strength",
        1.0,
        minimum=0,
        maximum=1,
        step=0.01,
        infotext="Conditional mask weight",
        hint="For inpainting checkpoints: 1 hides the masked part from the model, 0 shows it.",
    )
    initial_noise_multiplier = number(
        "Noise multiplier for img2img",
        1.0,
        minimum=0,
        maximum=1.5,
        step=0.001,
        infotext="Noise multiplier",
    )
    img2img_color_correction = flag(
        "Apply color correction to img2img results to match original colors.",
        False,
        infotext="Color correction",
        hint="Gives the result the color distribution of the start image, and keeps its own brightness.",
    )
    img2img_fix_steps = flag(
        "With img2img, do exactly the amount of steps the slider specifies.",
        False,
        infotext="Exact img2img steps",
        hint="Otherwise a denoising strength of 0.5 makes half of the steps.",
    )
    krea2_references = choice(
        "Krea 2: what its edit LoRAs were trained with",
        AUTOMATIC_REFERENCES,
        (AUTOMATIC_REFERENCES, IDENTITY_EDIT, AI_TOOLKIT, AI_TOOLKIT_CACHED),
        infotext="Krea 2 references",
        hint="Decides how references are shown. Automatic: AI Toolkit if the file of a LoRA in the prompt says so, "
        "else Identity Edit. No file says whether it was trained for a KV cache.",
    )
    img2img_background_color = text(
        "With img2img, fill transparent parts of the input image with this color.",
        "#ffffff",
        infotext="Img2img background",
        hint="As #rrggbb.",
    )
    img2img_editor_height = whole(
        "Height of the image editor of img2img", 720, minimum=80, maximum=4096, hint="Pixels; larger images are shrunk."
    )
    img2img_sketch_default_brush_color = text("Sketch initial brush color", "#ffffff", hint="As #rrggbb.")
    img2img_inpaint_mask_brush_color = text("Inpaint mask brush color", "#ffffff", hint="As #rrggbb.")
    img2img_inpaint_sketch_default_brush_color = text(
        "Inpaint sketch initial brush color", "#ffffff", hint="As #rrggbb."
    )
    return_mask = flag("For inpainting, include the grayscale mask in results for web", False)
    return_mask_composite = flag("For inpainting, include masked composite in results for web", False)
    img2img_batch_show_results_limit = whole(
        "Show the first N batch img2img results in UI",
        32,
        minimum=-1,
        maximum=1000,
        hint="-1: all that the server still has; 0: none.",
    )
    overlay_inpaint = flag(
        "Overlay original for inpaint",
        True,
        infotext="Overlay original",
        hint="Puts the unmasked pixels back over the result.",
    )
