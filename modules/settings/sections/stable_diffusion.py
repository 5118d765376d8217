"""The model and what it is asked: checkpoint, VAE, prompt handling, img2img."""

from modules.settings.group import Group
from modules.settings.setting import Section

SD = Group(Section(id="sd", title="Stable Diffusion", category="Stable Diffusion"))
MAX_CROP_PX = 4096
SDXL = Group(Section(id="sdxl", title="Stable Diffusion XL", category="Stable Diffusion"))
SD3 = Group(Section(id="sd3", title="Stable Diffusion 3", category="Stable Diffusion"))
VAE = Group(Section(id="vae", title="VAE", category="Stable Diffusion"))
IMG2IMG = Group(Section(id="img2img", title="img2img", category="Stable Diffusion"))

SETTINGS = (
    SD.choice(
        "sd_model_checkpoint",
        "Stable Diffusion checkpoint",
        None,
        "checkpoints",
        optional=True,
        infotext="Model hash",
    ),
    SD.choice(
        "emphasis",
        "Emphasis mode",
        "Original",
        ("None", "Ignore", "Original", "No norm"),
        infotext="Emphasis",
        hint="What (this:1.2) and [this] do. None: brackets are plain text; Ignore: brackets are removed; "
        "No norm: as Original, but the mean of the encoding is not restored afterwards.",
    ),
    SD.flag("enable_batch_seeds", "Make the same images in a batch as when making a single image", True),
    SD.flag("enable_prompt_comments", "Enable comments", True, hint="Lines of a prompt from # on are left out."),
    SD.whole(
        "comma_padding_backtrack",
        "Prompt word wrap length limit",
        20,
        minimum=0,
        maximum=74,
        step=1,
        hint="In tokens: text after the last comma moves to the next chunk of 75 whole, if it is shorter than this.",
    ),
    SD.whole(
        "CLIP_stop_at_last_layers",
        "Clip skip",
        1,
        minimum=1,
        maximum=12,
        step=1,
        infotext="Clip skip",
        hint="1: the last layer of the text encoder is used; 2: the last but one; and so on.",
    ),
    SD.choice(
        "randn_source",
        "Random number generator source",
        "GPU",
        ("GPU", "CPU", "NV"),
        infotext="RNG",
        hint="Decides the image of a seed. NV: what an NVIDIA card would draw, on any device.",
    ),
    SD.flag(
        "enable_quantization",
        "Round the sigmas of samplers to the model's own",
        False,
        hint="For models whose noise schedule has steps; may sharpen, and changes old seeds.",
    ),
    SD.flag("tiling", "Tiling", False, infotext="Tiling", hint="Images whose edges fit together."),
    SD.choice(
        "hires_fix_refiner_pass",
        "Hires fix: which pass to enable refiner for",
        "second pass",
        ("first pass", "second pass", "both passes"),
        infotext="Hires refiner",
    ),
    VAE.choice(
        "sd_vae",
        "SD VAE",
        "Automatic",
        "vaes",
        infotext="VAE",
        hint="Automatic: a VAE file named like the checkpoint, else the one inside the checkpoint.",
    ),
    VAE.flag(
        "sd_vae_overrides_per_model_preferences",
        "Selected VAE overrides per-model preferences",
        True,
        hint="Off: the VAE chosen here is only for checkpoints that have no VAE file of their own.",
    ),
    VAE.flag(
        "auto_vae_precision_bfloat16",
        "Automatically convert VAE to bfloat16",
        False,
        hint="When it gave NaN in 16-bit floats; comes before 32 bits where both are on.",
    ),
    VAE.flag(
        "auto_vae_precision",
        "Automatically revert VAE to 32-bit floats",
        True,
        hint="When it gave NaN; the image is decoded again. --no-half-vae computes it in 32 bits from the start.",
    ),
    VAE.whole(
        "vae_tile_size",
        "VAE tile size",
        0,
        minimum=0,
        maximum=4096,
        step=64,
        hint="Pixels a side; images that are larger run through the VAE in tiles: the same image, little memory on "
        "the GPU, slower. 0: only when memory did not last.",
    ),
    VAE.choice(
        "sd_vae_encode_method",
        "VAE type for encode",
        "Full",
        ("Full", "TAESD"),
        infotext="VAE Encoder",
        hint="Where an image becomes a latent: in hires fix with an upscaler that works on pixels. TAESD: as below.",
    ),
    VAE.choice(
        "sd_vae_decode_method",
        "VAE type for decode",
        "Full",
        ("Full", "TAESD"),
        infotext="VAE Decoder",
        hint="TAESD: a tiny network in models/VAE-taesd, faster and with little memory, with less detail. The model in "
        "the box has one; others need taesd_decoder, taesdxl_decoder or taesd3_decoder (.safetensors or .pth) there.",
    ),
    IMG2IMG.number(
        "img2img_extra_noise",
        "Extra noise multiplier for img2img and hires fix",
        0.0,
        minimum=0,
        maximum=1,
        step=0.01,
        infotext="Extra noise",
        hint="0: none. Adds detail to the second pass.",
    ),
    IMG2IMG.number(
        "inpainting_mask_weight",
        "Inpainting conditioning mask strength",
        1.0,
        minimum=0,
        maximum=1,
        step=0.01,
        infotext="Conditional mask weight",
        hidden=True,
    ),
    IMG2IMG.number(
        "initial_noise_multiplier",
        "Noise multiplier for img2img",
        1.0,
        minimum=0,
        maximum=1.5,
        step=0.001,
        infotext="Noise multiplier",
        hidden=True,
    ),
    SD.flag(
        "upcast_attn",
        "Upcast cross attention layer to float32",
        False,
        hint="Against black images in 16 bits; slower.",
    ),
    SD.whole(
        "sd_checkpoints_limit",
        "Maximum number of checkpoints loaded at the same time",
        1,
        minimum=1,
        maximum=10,
        step=1,
        hint="Changing back to one that is still loaded takes no time. When memory gets short, the one that was used "
        "longest ago goes first.",
    ),
    SD.flag(
        "sd_checkpoints_keep_in_cpu",
        "Only keep one model on device",
        True,
        hint="The others wait in main memory.",
    ),
    SD.number(
        "sd_checkpoints_ram_gb",
        "Most GB of main memory for checkpoints that are not in use",
        0.0,
        minimum=0,
        maximum=512,
        step=0.5,
        hint="The one that was used longest ago goes first. 0: as much as is free.",
    ),
    SD.number(
        "sd_checkpoints_vram_gb",
        "Most GB of the device's memory for checkpoints that are not in use",
        0.0,
        minimum=0,
        maximum=512,
        step=0.5,
        hint="Where more than one model is kept on the device. 0: as much as is free.",
    ),
    *SD.reserved(
        {
            "sd_checkpoint_cache": 0,
            "sd_unet": "Automatic",
        }
    ),
    SD.flag(
        "sdxl_clip_l_skip",
        "Clip skip SDXL",
        False,
        hint="Clip skip decides for the first text encoder of SDXL too; without it, the last but one layer counts.",
    ),
    SDXL.whole("sdxl_crop_top", "crop top coordinate", 0, minimum=0, maximum=MAX_CROP_PX),
    SDXL.whole("sdxl_crop_left", "crop left coordinate", 0, minimum=0, maximum=MAX_CROP_PX),
    SDXL.number(
        "sdxl_refiner_low_aesthetic_score",
        "SDXL low aesthetic score",
        2.5,
        minimum=0,
        maximum=10,
        hint="Used for refiner model negative prompt",
    ),
    SDXL.number(
        "sdxl_refiner_high_aesthetic_score",
        "SDXL high aesthetic score",
        6.0,
        minimum=0,
        maximum=10,
        hint="Used for refiner model prompt",
    ),
    SD3.flag(
        "sd3_enable_t5",
        "Enable T5",
        False,
        infotext="T5",
        hint="The third text encoder, where its file and its tokenizer are there; zeros take its place otherwise.",
    ),
    *VAE.reserved(
        {
            "sd_vae_explanation": "",
            "sd_vae_checkpoint_cache": 0,
        }
    ),
    *IMG2IMG.reserved(
        {
            "img2img_color_correction": False,
            "img2img_fix_steps": False,
            "img2img_background_color": "#ffffff",
            "img2img_editor_height": 720,
            "img2img_sketch_default_brush_color": "#ffffff",
            "img2img_inpaint_mask_brush_color": "#ffffff",
            "img2img_inpaint_sketch_default_brush_color": "#ffffff",
            "return_mask": False,
            "return_mask_composite": False,
            "img2img_batch_show_results_limit": 32,
            "overlay_inpaint": True,
        }
    ),
)
