"""Speed, memory, and switches that reproduce images of older versions."""

from modules.memory.formats.catalog import FORMAT_SPECS, chosen_formats
from modules.settings.group import SettingsGroup, choice, flag, number, text, whole
from modules.settings.setting import Section

FP8_CHOICES = ("Disable", "Enable for SDXL", "Enable")
"""No model, those of large families, all."""


def _blocks() -> str:
    """The formats in blocks: "Q8_0 8.5 bits (error 0.5 %), Q5_1 6 (3.8 %)"."""
    specs = [spec for _, spec in FORMAT_SPECS.items() if spec.in_blocks and spec.is_chosen]
    said = ", ".join(
        f"{spec.label.partition(',')[0]} {spec.bits:g} ({100 * (spec.error or 0.0):.1f} %)" for spec in specs
    )
    return said.replace(" (", " bits (error ", 1)


class OptimizationSettings(SettingsGroup):
    """Speed and memory."""

    section = Section(id="optimizations", title="Optimizations", category="Stable Diffusion")

    s_min_uncond = number(
        "Negative Guidance minimum sigma",
        0.0,
        minimum=0,
        maximum=15,
        step=0.01,
        infotext="NGMS",
        hint="Below this noise level every second step skips the negative prompt. 0: never.",
    )
    s_min_uncond_all = flag(
        "Negative Guidance minimum sigma all steps",
        False,
        infotext="NGMS all steps",
        hint="Skips the negative prompt on all steps below that level.",
    )
    token_merging_ratio = number(
        "Token merging ratio",
        0.0,
        minimum=0,
        maximum=0.9,
        step=0.1,
        infotext="Token merging ratio",
        hint="0: off. Higher is faster and changes the image.",
    )
    token_merging_ratio_img2img = number(
        "Token merging ratio for img2img",
        0.0,
        minimum=0,
        maximum=0.9,
        step=0.1,
        hint="0: as above.",
        affects_image=True,
    )
    token_merging_ratio_hr = number(
        "Token merging ratio for high-res pass",
        0.0,
        minimum=0,
        maximum=0.9,
        step=0.1,
        infotext="Token merging ratio hr",
        hint="0: the ratio above.",
    )
    forecast_strength = number(
        "Forecast steps (Spectrum)",
        0.0,
        minimum=0,
        maximum=1,
        step=0.05,
        infotext="Forecast steps",
        hint="0: off. Computes some steps from earlier ones instead of the model: 0.5 saves about two of five of 20 "
        "steps. For samplers that add no noise and call the model once per step; the image changes a little.",
    )
    step_cache_threshold = number(
        "Step cache (EasyCache)",
        0.0,
        minimum=0,
        maximum=0.3,
        step=0.01,
        infotext="Step cache",
        hint="0: off. For flow models (FLUX, SD3, Z-Image ...): reuses the last output of the model until its "
        "estimated change reaches this share. Overrides Forecast steps; the image changes a little.",
    )
    pad_cond_uncond = flag(
        "Pad prompt/negative prompt",
        False,
        infotext="Pad conds",
        hint="Pads both to the same length, so that they run in one batch. Changes the image a little.",
    )
    pad_cond_uncond_v0 = flag(
        "Pad prompt/negative prompt (v0)",
        False,
        infotext="Pad conds v0",
        hint="As in versions before 1.6.0, which cut a longer negative prompt. Overrides the option above.",
    )
    persistent_cond_cache = flag("Persistent cond cache", True, hint="An unchanged prompt is not encoded again.")
    prompt_cache_mb = whole(
        "Encoded prompts on disk (MB)",
        128,
        minimum=0,
        maximum=65536,
        hint="Known prompts need no text encoder, also after a restart. 0: none are kept.",
    )
    batch_cond_uncond = flag(
        "Batch cond/uncond",
        True,
        hint="Prompt and negative prompt in one batch: faster, more memory.",
        affects_image=True,
    )
    fp8_storage = choice(
        "FP8 weight",
        "Disable",
        FP8_CHOICES,
        infotext="FP8 weight",
        hint="Keeps the weights of UNet and text encoders in 8 bits: half the memory. SDXL includes larger models.",
    )
    weights_budget_gb = number(
        "Fit weights into (GB)",
        0.0,
        minimum=0,
        maximum=1024,
        step=0.1,
        infotext="Weights budget",
        hint="Gives each layer the format (16 bits, Q8_0 ... code4) with which the model fits and loses least. 0: off.",
    )
    fp8_format = choice(
        "FP8 format",
        "fp8_e4m3fn_row",
        chosen_formats(),
        infotext="FP8 format",
        hint="With one scale per row (the best, and int8; int8_convrot rotates weights that have outliers), plain as "
        f"other programs store it, or in blocks: {_blocks()}.",
    )
    fp8_skip = text(
        "Layers that FP8 leaves alone",
        "",
        infotext="FP8 skip",
        hint="Regular expressions for layer names, one per line or separated by ; such as ^conv_out$",
    )
    fp8_text_encoder = flag("FP8 for text encoders too", True, infotext="FP8 text encoder")
    cache_fp16_weight = flag(
        "Cache FP16 weight for LoRA",
        False,
        infotext="Cache FP16 weight for LoRA",
        hint="For LoRAs merged into 8-bit weights: keeps 16-bit copies of the changed layers in main memory. LoRA "
        "mode exact, which Automatic chooses on 8-bit weights, needs none.",
    )
    compute_dtype = choice(
        "Compute dtype",
        "Automatic",
        ("Automatic", "fp32", "fp16", "bf16"),
        infotext="Compute dtype",
        hint="The dtype in which layers compute, however they are stored.",
    )
    compute_mode = choice(
        "Compute mode",
        "Automatic",
        ("Automatic", "Manual cast", "Autocast", "FP8 matmul", "int8 matmul"),
        infotext="Compute mode",
        hint="Cast in each layer, or PyTorch's autocast. Automatic chooses by device and format. FP8 matmul multiplies "
        "in 8 bits on NVIDIA GPUs of compute capability 8.9 or newer: less exact, and slower on an H100; no effect "
        "elsewhere. int8 matmul does so with the int8 formats; Automatic chooses it where it was measured to "
        "be faster.",
    )
    torch_compile = flag(
        "Compile blocks (torch.compile)",
        False,
        infotext="Torch compile",
        hint="The blocks of UNets and transformers are compiled at their first use for each image size, which takes a "
        "minute or more. Meant for GPUs: on CPUs a step takes as long as before. Needs a C++ compiler (CPU) or Triton "
        "(GPU). No effect on streamed weights and with 8-bit matmul.",
    )
    cuda_graphs = choice(
        "CUDA graphs",
        "Automatic",
        ("Automatic", "Off", "On"),
        hint="Calls of the model are recorded once and replayed, so that a fast NVIDIA GPU does not wait for Python. "
        "Automatic: where it was seen to wait and has memory left. The images stay the same.",
    )
    lora_mode = choice(
        "LoRA mode",
        "Automatic",
        ("Automatic", "exact", "merge from full precision", "merge into fp8", "merge into fp8, stochastic"),
        infotext="LoRA mode",
        hint="How a LoRA meets the weights. Automatic: exact on 8-bit weights, merged on 16-bit ones.",
    )
    stream_weights = choice(
        "Stream weights",
        "Automatic",
        ("Automatic", "Off", "Parts", "Blocks", "Layers"),
        hint="The device holds only what computes: a part of the model, a block or a layer. The images stay the "
        "same. On a GPU the rest stays in main memory; on the CPU it is read from the checkpoint file. "
        "Automatic: as --medvram or --lowvram say, and in smaller units where a model does not fit.",
    )
    stream_keep_gb = number(
        "GB of streamed weights that stay",
        0.0,
        minimum=0,
        maximum=64,
        step=0.1,
        hint="Blocks or layers that stay on the device between steps: faster, more memory.",
    )
    decoded_keep_gb = number(
        "GB of decoded weights that stay",
        0.0,
        minimum=0,
        maximum=64,
        step=0.1,
        hint="Keeps decoded 8-bit weights on an NVIDIA or AMD GPU between steps, while memory is free: faster. The "
        "images stay the same.",
    )
    vram_headroom_gb = number(
        "VRAM headroom (GB)",
        0.0,
        minimum=0,
        maximum=64,
        step=0.1,
        hint="GPU memory left free for other programs: estimates count with less, and weights move to main memory if "
        "less is free before a step. The images stay the same. No effect on the CPU.",
    )
    offload_quota_gb = number(
        "Maximum GB of weights written for streaming from disk",
        50.0,
        minimum=0,
        maximum=2000,
        step=1,
        hint="For weights that the checkpoint file does not hold in the form needed (8 bits). The files unused for "
        "longest are deleted first. python launch.py offload-clean deletes them all.",
    )
    cross_attention_optimization = choice(
        "Cross attention optimization",
        "Automatic",
        ("Automatic", "sdp", "sdp-no-mem", "xformers", "sub-quadratic", "Doggettx", "InvokeAI", "V1", "int8", "None"),
        hint="Automatic: as the command line says, else int8 where the model multiplies in int8 on a CPU and numba is "
        "installed, else sdp. The others need less memory where sdp has no good kernel.",
        affects_image=True,
    )
    split_feed_forward = choice(
        "Split feed-forward",
        "Off",
        ("Off", "Automatic", "2", "4", "8"),
        hint="Computes the widest layers in slices: less memory for large images. Automatic: where memory is short.",
        affects_image=True,
    )


class CompatibilitySettings(SettingsGroup):
    """Switches that reproduce images of older versions."""

    section = Section(id="compatibility", title="Compatibility", category="Stable Diffusion")

    auto_backcompat = flag(
        "Automatic backward compatibility",
        True,
        hint="Switches the options below as the version in a pasted infotext needs them.",
    )
    use_old_emphasis_implementation = flag(
        "Use the old emphasis implementation",
        False,
        infotext="Old emphasis",
        hint="For old seeds: each bracket weighs what comes after it, (written:1.2) weights are plain text, and a "
        "prompt ends at 75 tokens.",
        affects_encoding=True,
    )
    use_old_karras_scheduler_sigmas = flag("Use the old Karras sigmas, 0.1 to 10", False, affects_image=True)
    no_dpmpp_sde_batch_determinism = flag(
        "Let DPM++ SDE depend on the batch size",
        False,
        hint="The old behavior: an image of a batch then differs from the same seed alone.",
        affects_image=True,
    )
    use_old_hires_fix_width_height = flag(
        "Hires fix: width and height are those of the final image",
        False,
        hint="The old behavior; otherwise they are those of the first pass.",
        affects_image=True,
    )
    hires_fix_use_firstpass_conds = flag(
        "Hires fix: encode the prompts of the second pass with the extra networks of the first",
        False,
        infotext="Hires conds of first pass",
        hint="Matters only where the hires prompt names other extra networks.",
    )
    use_old_scheduling = flag(
        "Use old prompt editing timelines",
        False,
        infotext="Old prompt editing timelines",
        hint="As before 1.6.0: [red:green:N] counts steps from 1 up, and hires fix shares the numbers.",
        affects_encoding=True,
    )
    use_downcasted_alpha_bar = flag(
        "Round alphas_cumprod to fp16 before sampling", False, infotext="Downcast alphas_cumprod", hint="For old seeds."
    )
    refiner_switch_by_sample_steps = flag(
        "Switch to refiner by sampling steps", False, infotext="Refiner switch by sampling steps"
    )
