"""Flags of the reference UI that are accepted and do nothing here, each with the reason the log gives.

Whoever builds what a flag asks for removes its line. Standard library only.
"""

_NO_LDSR = "LDSR is no upscaler here; ESRGAN, Real-ESRGAN, BSRGAN, DAT, HAT, ScuNET and SwinIR files are read"
_NO_EXTENSIONS = "the tab Extensions installs and updates extensions"
_NO_DOWNLOAD = "nothing is downloaded at start"
_ONE_NAMING = "names are cut and cleaned so that every system takes them"
_NOT_IN_REFERENCE = "it does nothing in the reference UI either"

NO_EFFECT: dict[str, str] = {
    "f": "running as root is not prevented",
    "update_all_extensions": _NO_EXTENSIONS,
    "skip_python_version_check": "launch.py looks for a suitable Python itself",
    "skip_version_check": "versions are pinned in requirements.txt",
    "update_check": "nothing is looked up on the network at start",
    "log_startup": "the log has the times of the start",
    "dump_sysinfo": "launch.py doctor prints what this program runs on",
    "textual_inversion_templates_dir": "the Train tab takes its texts from captions",
    "unload_gfpgan": _NOT_IN_REFERENCE,
    "ldsr_models_path": _NO_LDSR,
    "deepdanbooru": _NOT_IN_REFERENCE,
    "upcast_sampling": "--no-half computes everything in 32 bits",
    "lowram": "checkpoints are always read tensor by tensor, straight to where they belong",
    "disable_model_loading_ram_optimization": "loading has only one way, which holds no second copy of the model",
    "opt_channelslast": "there is one layout of the weights",
    "always_batch_cond_uncond": _NOT_IN_REFERENCE,
    "max_batch_count": _NOT_IN_REFERENCE,
    "xformers_flash_attention": "xformers chooses its kernel by itself",
    "no_download_sd_model": _NO_DOWNLOAD,
    "do_not_download_clip": _NO_DOWNLOAD,
    "disable_safe_unpickle": "pickled checkpoints are read without running what is in them",
    "api": "the API is always served next to the page",
    "no_prompt_history": "params.txt is not written; the Paste button asks the record of jobs",
    "unix_filenames_sanitization": _ONE_NAMING,
    "filenames_max_length": _ONE_NAMING,
    "gradio_debug": "the page is served without Gradio's launcher",
    "gradio_queue": "jobs have their own queue outside of Gradio",
    "no_gradio_queue": "jobs have their own queue outside of Gradio",
    "disable_tls_verify": "the server makes no HTTPS request to itself",
    "use_textbox_seed": "the seed is a number field",
    "no_progressbar_hiding": "the page has its own progress bar",
    "enable_console_prompts": "Settings > System has it: print prompts to the console",
    "show_negative_prompt": _NOT_IN_REFERENCE,
    "gradio_img2img_tool": _NOT_IN_REFERENCE,
    "gradio_inpaint_tool": _NOT_IN_REFERENCE,
    "allow_code": "there is no script that runs code",
    "administrator": "users and their roles come from --auth-file",
}

TUNNELS = ("share", "ngrok", "ngrok_options", "ngrok_region")
NO_TUNNEL = (
    "would open a tunnel through somebody else's server, which then sees every prompt and image, at an address that "
    "strangers can guess; none is built in. To be reached from outside, start with --listen and a login, and put a "
    "reverse proxy with TLS in front (docs/guide/starting.md)"
)
"""Flags that are refused, and why: a start that ignored them would leave the user waiting for an address."""
