"""Extensions of the reference UI that work inside of its model, whose work the program does itself. Where both are
there, theirs is left out and says so; switched off, ours steps aside and theirs is loaded."""

TWINS = {
    "multidiffusion-upscaler-for-automatic1111": "tiled-diffusion",
    "sd-webui-regional-prompter": "regional-prompter",
    "sd-forge-couple": "regional-prompter",
    "sd-webui-freeu": "freeu",
    "sd-dynamic-thresholding": "dynamic-thresholding",
    "sd-webui-kohya-hiresfix": "kohya-hires-fix",
    "sd_webui_sag": "guidance",
    "sd-webui-incantations": "guidance",
    "sd-webui-negpip": "neg-pip",
    "sd-webui-controlnet": "controlnet",
    "sd-webui-lora-block-weight": "Lora",
    "sd-webui-agent-scheduler": "agent-scheduler",
}
"""Their folders, in lower case, and the folder of the program's extension that does the same."""

INSTEAD = {
    "adetailer": "detailer",
    "sd-dynamic-prompts": "dynamic-prompts",
    "stable-diffusion-webui-wildcards": "dynamic-prompts",
    "ultimate-upscale-for-automatic1111": "ultimate-upscale",
    "a1111-sd-webui-tagcomplete": "tag-completion",
    "sd-webui-detail-daemon": "detail-daemon",
}
"""Those that are loaded where they can be, and whose work ours does where they fail (a package is missing)."""


def instead_of(name: str, loaded: set[str]) -> str:
    """Which of the loaded extensions does the work of one that failed; "" where none does."""
    ours = INSTEAD.get(name.lower(), "")
    return ours if ours in loaded else ""


def twin_of(name: str, loaded: set[str]) -> str:
    """Which of the loaded extensions does the work of a user extension; "" where none does."""
    ours = TWINS.get(name.lower(), "")
    return ours if ours in loaded else ""
