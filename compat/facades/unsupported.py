"""Modules of the reference UI that stand for nothing here, each with what does their work. They can be imported;
what is done with a name of theirs raises the sentence."""

_INSIDE = (
    "it works inside of the reference UI's model, which has other modules here; script_callbacks.on_cfg_denoiser and "
    "its like see and change each step."
)
_LORA = "`<lora:name:weight>` in a prompt is read by the built-in extension Lora, and p.prompts may hold it."
_TRAINING = "the Train tab and POST /featherweight/v1/train train LoRAs."
_CARDS = "`from modules.extra_networks import CardPage, register_page` adds a page of cards."
_LISTS = "shared.sd_upscalers has the upscalers that there are."

MODULES = {
    **dict.fromkeys(("sd_hijack_unet", "sd_hijack_utils", "sd_hijack_clip", "sd_hijack_open_clip", "sd_unet"), _INSIDE),
    **dict.fromkeys(
        ("sd_hijack_optimizations", "sd_hijack_checkpoint", "sd_hijack_xlmr", "sub_quadratic_attention"), _INSIDE
    ),
    **dict.fromkeys(
        ("sd_samplers_cfg_denoiser", "sd_samplers_extra", "sd_samplers_compvis", "sd_samplers_lcm"), _INSIDE
    ),
    **dict.fromkeys(("sd_models_xl", "sd_models_types", "sd_models_config", "sd_disable_initialization"), _INSIDE),
    **dict.fromkeys(
        ("models", "models.diffusion", "models.diffusion.uni_pc", "xlmr", "xlmr_m18", "sd_vae_approx"), _INSIDE
    ),
    **dict.fromkeys(
        ("sd_vae_taesd", "hypernetworks", "hypernetworks.hypernetwork", "npu_specific", "mac_specific"), _INSIDE
    ),
    **dict.fromkeys(("textual_inversion.preprocess", "textual_inversion.autocrop", "textual_inversion.ui"), _TRAINING),
    **dict.fromkeys(
        ("textual_inversion.image_embedding", "textual_inversion.learn_schedule", "hypernetworks.ui"), _TRAINING
    ),
    **dict.fromkeys(("sd_hijack_ip2p", "sd_samplers_common_cfg", "soft_inpainting", "models.sd3"), _INSIDE),
    **dict.fromkeys(("ui_extra_networks_checkpoints", "ui_extra_networks_hypernets"), _CARDS),
    **dict.fromkeys(("ui_extra_networks_textual_inversion", "ui_extra_networks_user_metadata"), _CARDS),
    "ui_extra_networks_checkpoints_user_metadata": _CARDS,
    "upscaler_utils": _LISTS,
    "ui_checkpoint_merger": "the Checkpoint merger and POST /featherweight/v1/merge merge.",
    "deepbooru_model": "modules.deepbooru writes tags of an image.",
    "face_restoration_utils": "shared.face_restorers has the restorers of faces.",
    "scripts_auto_postprocessing": "a subclass of ScriptPostprocessing is an operation of the Extras tab.",
    "logging_config": "the program writes its log; use Python's logging.",
    "xpu_specific": "modules.devices says which device there is.",
    **dict.fromkeys(("esrgan_model", "realesrgan_model", "dat_model", "hat_model", "esrgan_model_arch"), _LISTS),
    **dict.fromkeys(("extra_networks_hypernet", "lora", "ui_extra_networks_lora"), _LORA),
    "codeformer_model": "shared.face_restorers has the restorers of faces.",
    "gfpgan_model": "shared.face_restorers has the restorers of faces.",
    "ui_settings": "script_callbacks.on_ui_settings and shared.opts.add_option add settings.",
    "ui_loadsave": "the defaults of fields are those of ui-config.json, which the program reads itself.",
    "ui_postprocessing": "a subclass of ScriptPostprocessing is an operation of the Extras tab.",
    "ui_toprow": "script_callbacks.on_after_component gives each control of the form, by its elem_id.",
    "shared_init": "the program is built by launch.py.",
    "shared_gradio_themes": "the page's looks are its own; style.css of an extension is added to it.",
    "gradio_extensons": "Gradio 3's habits are understood while code of an extension runs.",
    "gradio_extensions": "Gradio 3's habits are understood while code of an extension runs.",
    "sd_emphasis": "prompts are encoded by the program; parse_prompt_attention takes one apart.",
    "ui_extensions": "the Extensions tab and GET /featherweight/v1/extensions list extensions.",
    "config_states": "python launch.py backup keeps the state of the program.",
    "initialize": "the program is built by launch.py.",
    "initialize_util": "the program is built by launch.py.",
    "memmon": "GET /sdapi/v1/memory says what memory holds.",
    "import_hook": "the program imports PyTorch as it is.",
    "gitpython_hack": "the Extensions tab installs and updates extensions.",
    "torch_utils": "tensors are PyTorch's own.",
    "ngrok": "no public tunnel is opened; put a reverse proxy before --listen.",
}
