"""The command line: every flag, typed, in one frozen object that the launcher and the server share.

The names are the reference UI's, so that start scripts keep working. A flag that has no effect here stands in
`no_effect.py` with its reason, and the log says so. Standard library only: `launch.py` parses before the virtual
environment exists.
"""

import re
import shlex
from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from modules.errors import FeatherweightError
from modules.flags.extension_commands import extension_commands
from modules.flags.no_effect import NO_EFFECT, NO_TUNNEL, TUNNELS
from modules.flags.options import (
    credentials_text,
    file,
    folder,
    lower,
    option_of,
    switch,
    upper,
    value,
    values,
    whole_number,
)

SETUP, PATHS, PRECISION, DEVICE, ATTENTION = "set-up", "paths", "precision and memory", "device", "attention"
MODELS, SERVER, PAGE, EXTENSIONS, FILES = "models", "server", "page", "extensions and safety", "files"
GROUPS = (SETUP, PATHS, PRECISION, DEVICE, ATTENTION, MODELS, SERVER, PAGE, EXTENSIONS, FILES)

TORCH_BUILDS = ("auto", "cuda", "rocm", "xpu", "cpu", "mps")
CPU_PARTS = (
    *("all", "sd", "interrogate", "gfpgan", "codeformer", "esrgan", "bsrgan", "realesrgan", "scunet", "swinir"),
    *("dat", "ldsr"),
)
DEFAULT_PORT = 7860
MAX_WORKERS = 64
MAX_THREADS = 1024
DEFAULT_API_PORT = 7861  # with --nowebui
SECRET_FLAGS = ("api_auth", "gradio_auth", "access_token", "remote_worker", "tls_keyfile", "ngrok", "ngrok_options")
HIDDEN_VALUE = "(hidden)"


class UsageError(FeatherweightError):
    """The command line cannot be understood; the launcher prints the message and exits with 2."""

    status = 422


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Flags that were given on the command line. Paths are as typed (None: the default, see `modules.system.paths`)."""

    torch: str = value(SETUP, "which build of PyTorch to install", "auto", lower, TORCH_BUILDS)
    reinstall_torch: bool = switch(SETUP, "install PyTorch again, for instance after a change of GPU")
    skip_install: bool = switch(SETUP, "install and check nothing; use .venv, or the running Python if there is none")
    skip_prepare_environment: bool = switch(SETUP, "the same as --skip-install")
    skip_torch_cuda_test: bool = switch(SETUP, "do not say which device PyTorch found after installing it")
    exit: bool = switch(SETUP, "stop after the set-up")
    test_server: bool = switch(
        SETUP, "serve for API tests: --api --skip-torch-cuda-test --disable-nan-check, COMMANDLINE_ARGS ignored"
    )
    loglevel: str | None = value(
        SETUP, "how much to log", None, upper, ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    )
    f: bool = switch(SETUP, "allow running as root")
    update_all_extensions: bool = switch(SETUP, "update extensions at start")
    skip_python_version_check: bool = switch(SETUP, "do not check the version of Python")
    skip_version_check: bool = switch(SETUP, "do not check the versions of packages")
    reinstall_xformers: bool = switch(SETUP, "install xformers again, or try once more where its wheel did not fit")
    update_check: bool = switch(SETUP, "look for a new version at start")
    log_startup: bool = switch(SETUP, "log in detail what the start spends its time on")
    dump_sysinfo: bool = switch(SETUP, "write a file about the system and stop")

    data_dir: str | None = folder(PATHS, "folder of settings, outputs and models (default: this folder)")
    models_dir: str | None = folder(PATHS, "folder of models (default: models in the data folder)")
    config: str | None = file(PATHS, "YAML used for checkpoints without their own")
    ckpt: str | None = file(PATHS, "checkpoint to load first")
    ckpt_dir: str | None = folder(PATHS, "a second folder of checkpoints")
    vae_dir: str | None = folder(PATHS, "a second folder of VAEs")
    vae_path: str | None = file(PATHS, "use this VAE and ignore the VAE setting")
    lora_dir: str | None = folder(PATHS, "folder of LoRA files")
    embeddings_dir: str | None = folder(PATHS, "folder of textual inversion embeddings")
    hypernetwork_dir: str | None = folder(PATHS, "folder of hypernetworks")
    esrgan_models_path: str | None = folder(PATHS, "folder of ESRGAN upscalers")
    ui_config_file: str | None = file(PATHS, "file of the page's default values")
    ui_settings_file: str | None = file(PATHS, "file of the settings")
    styles_file: tuple[str, ...] = values(PATHS, "file of prompt styles; repeatable, may hold wildcards", "append")
    textual_inversion_templates_dir: str | None = folder(PATHS, "folder of training templates")
    localizations_dir: str | None = folder(PATHS, "folder of translations")
    gfpgan_dir: str | None = folder(PATHS, "folder of GFPGAN")
    gfpgan_model: str | None = file(PATHS, "file of GFPGAN")
    gfpgan_models_path: str | None = folder(PATHS, "folder of GFPGAN models")
    codeformer_models_path: str | None = folder(PATHS, "folder of CodeFormer models")
    bsrgan_models_path: str | None = folder(PATHS, "folder of BSRGAN upscalers")
    realesrgan_models_path: str | None = folder(PATHS, "folder of Real-ESRGAN upscalers")
    dat_models_path: str | None = folder(PATHS, "folder of DAT upscalers")
    clip_models_path: str | None = folder(PATHS, "folder of CLIP models")
    lyco_dir_backcompat: str | None = folder(PATHS, "second folder of LyCORIS files")
    ldsr_models_path: str | None = folder(PATHS, "folder of LDSR upscalers")
    scunet_models_path: str | None = folder(PATHS, "folder of ScuNET upscalers")
    swinir_models_path: str | None = folder(PATHS, "folder of SwinIR upscalers")

    no_half: bool = switch(PRECISION, "compute everything in 32 bits")
    no_half_vae: bool = switch(PRECISION, "compute the VAE in 32 bits")
    precision: str = value(
        PRECISION, "full: 32 bits; half: 16 bits throughout", "autocast", lower, ("full", "half", "autocast")
    )
    upcast_sampling: bool = switch(PRECISION, "compute the sampling step in 32 bits")
    medvram: bool = switch(PRECISION, "keep only one part of the model on the GPU at a time")
    medvram_sdxl: bool = switch(PRECISION, "--medvram for SDXL models only")
    lowvram: bool = switch(PRECISION, "keep only the layers at work on the GPU")
    offload_dir: str | None = folder(PRECISION, "keep streamed weights on disk, written to this folder where needed")
    lowram: bool = switch(PRECISION, "load checkpoints straight to the GPU")
    disable_model_loading_ram_optimization: bool = switch(PRECISION, "load checkpoints the ordinary way")
    opt_channelslast: bool = switch(PRECISION, "keep images channels-last in memory")
    disable_nan_check: bool = switch(PRECISION, "do not check latents and images for NaN")
    always_batch_cond_uncond: bool = switch(PRECISION, "compute prompt and negative prompt in one batch")
    unload_gfpgan: bool = switch(PRECISION, "unload GFPGAN after use")
    max_batch_count: int = value(PRECISION, "largest batch count on the page", 16, whole_number(1))

    device_id: int | None = value(DEVICE, "number of the GPU to use", None, whole_number(0))
    use_cpu: tuple[str, ...] = values(DEVICE, "parts to compute on the CPU", "+", lower, CPU_PARTS)
    use_ipex: bool = switch(DEVICE, "use an Intel GPU")
    cpu_threads: int = value(
        DEVICE,
        "threads that compute on the CPU (default 0: as many as are the fastest, measured at the first start)",
        0,
        whole_number(0, MAX_THREADS),
    )

    xformers: bool = switch(ATTENTION, "xformers attention; installs its wheel where one fits")
    force_enable_xformers: bool = switch(ATTENTION, "xformers attention even if it seems unsupported")
    xformers_flash_attention: bool = switch(ATTENTION, "xformers with flash attention")
    opt_split_attention: bool = switch(ATTENTION, "Doggettx's split attention")
    opt_split_attention_invokeai: bool = switch(ATTENTION, "InvokeAI's split attention")
    opt_split_attention_v1: bool = switch(ATTENTION, "the first split attention")
    opt_sub_quad_attention: bool = switch(ATTENTION, "sub-quadratic attention")
    sub_quad_q_chunk_size: int = value(ATTENTION, "queries per chunk", 1024, whole_number(1))
    sub_quad_kv_chunk_size: int | None = value(ATTENTION, "keys per chunk", None, whole_number(1))
    sub_quad_chunk_threshold: int | None = value(
        ATTENTION, "percentage of memory from which to chunk", None, whole_number(0, 100)
    )
    opt_sdp_attention: bool = switch(ATTENTION, "PyTorch's scaled dot product attention")
    opt_sdp_no_mem_attention: bool = switch(ATTENTION, "the same without its memory-efficient kernel: repeatable")
    disable_opt_split_attention: bool = switch(ATTENTION, "no attention optimization chosen by itself")

    no_hashing: bool = switch(MODELS, "do not compute the hashes of checkpoints")
    skip_load_model_at_start: bool = switch(MODELS, "load the model with the first image, not at start")
    no_download_sd_model: bool = switch(MODELS, "do not download a model when there is none")
    do_not_download_clip: bool = switch(MODELS, "do not download CLIP")
    disable_safe_unpickle: bool = switch(MODELS, "load pickled checkpoints without a check")

    listen: bool = switch(SERVER, "answer on every address of this machine, not only to itself")
    server_name: str | None = value(SERVER, "address to answer on", None, metavar="ADDRESS")
    port: int = value(
        SERVER,
        f"port (default {DEFAULT_PORT}; {DEFAULT_API_PORT} with --nowebui)",
        DEFAULT_PORT,
        whole_number(1, 65535),
    )
    api: bool = switch(SERVER, "serve the API next to the page")
    nowebui: bool = switch(SERVER, "serve the API without the page")
    api_auth: str | None = value(
        SERVER, "user:password[,...] for the API (default: the page's users)", None, credentials_text, metavar="AUTH"
    )
    api_log: bool = switch(SERVER, "log every request to the API")
    api_server_stop: bool = switch(SERVER, "allow stopping and restarting the server through the API")
    add_stop_route: bool = switch(SERVER, "older name of --api-server-stop")
    gradio_auth: str | None = value(
        SERVER,
        "user:password[,...] for the page, and for the API without --api-auth",
        None,
        credentials_text,
        metavar="AUTH",
    )
    access_token: str | None = value(
        SERVER,
        "a secret that the address must carry as ?token=TOKEN; without TOKEN one is drawn and printed",
        None,
        many="?",
        metavar="TOKEN",
    )
    i_know_this_is_open: bool = switch(SERVER, "answer other machines without users and without a token")
    allow_host: tuple[str, ...] = values(
        SERVER, "a further name this server may be called by, as behind a reverse proxy; repeatable", "append"
    )
    trusted_proxy: tuple[str, ...] = values(
        SERVER, "address or network of a reverse proxy whose X-Forwarded-* headers are believed; repeatable", "append"
    )
    gradio_auth_path: str | None = file(SERVER, "file of user:password lines, added to --gradio-auth")
    auth_file: str | None = file(SERVER, "file of users with hashed passwords and roles (launch.py user makes it)")
    session_idle_hours: int = value(SERVER, "a login ends when it is not used for so long", 12, whole_number(1, 8760))
    session_hours: int = value(SERVER, "a login ends after so long in any case", 168, whole_number(1, 8760))
    gradio_allowed_path: tuple[str, ...] = values(
        SERVER, "folder that images may be saved in when other machines can reach the server; repeatable", "append"
    )
    gradio_debug: bool = switch(SERVER, "launch Gradio with its debug option")
    gradio_queue: bool = switch(SERVER, "use Gradio's queue")
    no_gradio_queue: bool = switch(SERVER, "do not use Gradio's queue")
    cors_allow_origins: str | None = value(SERVER, "origins allowed to call the API, separated by commas", None)
    cors_allow_origins_regex: str | None = value(SERVER, "regular expression of such origins", None, metavar="REGEX")
    tls_keyfile: str | None = file(SERVER, "private key for HTTPS")
    tls_certfile: str | None = file(SERVER, "certificate for HTTPS")
    disable_tls_verify: bool = switch(SERVER, "allow a self-signed certificate")
    subpath: str | None = value(SERVER, "path under which a reverse proxy shows this server", None)
    timeout_keep_alive: int = value(SERVER, "seconds an idle connection stays open", 30, whole_number(0))
    workers: int | None = value(
        SERVER,
        "processes that make images, each with a model of its own; on a machine with GPUs one for each GPU, else the "
        "cores are split (default 1; 0: in the server's process, which a crash ends then)",
        None,
        whole_number(0, MAX_WORKERS),
    )
    farm: str | None = value(
        SERVER,
        "host:port of the head of a Ray cluster that runs the --workers, or auto, or local; needs "
        "requirements-farm.txt",
        None,
        metavar="ADDRESS",
    )
    remote_worker: tuple[str, ...] = values(
        SERVER,
        "http://user:password@host:port of another server with /sdapi/v1 (this program, the reference UI, Forge) that "
        "makes images for this one; repeatable",
        "append",
        metavar="ADDRESS",
    )
    remote_workers_file: str | None = file(SERVER, "file of such addresses, one a line")
    share: bool = switch(SERVER, "refused: no tunnel through somebody else's server is built in")
    ngrok: str | None = value(SERVER, "refused, as --share", None, metavar="TOKEN")
    ngrok_options: str | None = value(SERVER, "refused, as --share", None, metavar="JSON")
    ngrok_region: str = value(SERVER, "refused, as --share", "")

    autolaunch: bool = switch(PAGE, "open the page in the browser")
    theme: str | None = value(PAGE, "light or dark page", None, lower, ("light", "dark"))
    ui_debug_mode: bool = switch(PAGE, "start the page without a model")
    use_textbox_seed: bool = switch(PAGE, "seed as text")
    no_progressbar_hiding: bool = switch(PAGE, "show Gradio's own progress bar")
    disable_console_progressbars: bool = switch(PAGE, "no progress bars in the terminal")
    enable_console_prompts: bool = switch(PAGE, "show prompts in the terminal")
    hide_ui_dir_config: bool = switch(PAGE, "lock the settings that hold paths")
    freeze_settings: bool = switch(PAGE, "lock all settings")
    freeze_settings_in_sections: str | None = value(
        PAGE, "lock the settings of these sections, separated by commas", None, metavar="SECTIONS"
    )
    freeze_specific_settings: str | None = value(
        PAGE, "lock these settings, separated by commas", None, metavar="SETTINGS"
    )
    no_prompt_history: bool = switch(PAGE, "do not write params.txt")
    show_negative_prompt: bool = switch(PAGE, "show the negative prompt")
    gradio_img2img_tool: str | None = value(PAGE, "editor of img2img", None)
    gradio_inpaint_tool: str | None = value(PAGE, "editor of inpaint", None)
    deepdanbooru: bool = switch(PAGE, "DeepDanbooru interrogator")

    disable_all_extensions: bool = switch(EXTENSIONS, "run without any extension")
    disable_extra_extensions: bool = switch(EXTENSIONS, "run with built-in extensions only")
    enable_insecure_extension_access: bool = switch(EXTENSIONS, "allow installing extensions on a shared server")
    allow_code: bool = switch(EXTENSIONS, "allow the script that runs Python code")
    administrator: bool = switch(EXTENSIONS, "allow administrative functions")

    unix_filenames_sanitization: bool = switch(FILES, "remove only what Linux forbids from file names")
    filenames_max_length: int = value(FILES, "longest file name in characters", 128, whole_number(16, 255))

    @property
    def host(self) -> str:
        """The address to answer on: --server-name, else every address with --listen, else this machine only."""
        return self.server_name or ("0.0.0.0" if self.listen else "127.0.0.1")


class _Parser(ArgumentParser):
    """argparse without its page of usage before each message, and with an exception instead of an exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (python launch.py --help lists everything)")

    def format_help(self) -> str:
        added = extension_commands().items()
        self.epilog = _COMMANDS.format("".join(f", {name} ({command.help})" for name, command in added))
        return super().format_help()


def flag_name(name: str) -> str:
    """The flag of a field: "no_half" -> "--no-half"; the one-letter field keeps one dash."""
    return f"-{name}" if len(name) == 1 else "--" + name.replace("_", "-")


def add_arguments(parser: ArgumentParser, groups: Iterable[str] = GROUPS) -> None:
    """Add the flags of `groups` to any parser, those without effect last, in a group of their own; flags that were not
    given stay out of its namespace. A parser with some of them names their groups in its help, which the whole list
    would bury."""
    groups = tuple(groups)
    is_whole = groups == GROUPS
    if not is_whole:
        parser.epilog = f"The flags for {', '.join(groups)} are accepted too: launch.py --help lists them."
    sections = {name: parser.add_argument_group(name) for name in groups}
    appendix = parser.add_argument_group("accepted from the reference UI, without effect here")
    for field in fields(Flags):
        option = option_of(field)
        if option.group in sections:
            section = appendix if field.name in NO_EFFECT else sections[option.group]
            keywords = _keywords(field) if is_whole else {**_keywords(field), "help": SUPPRESS}
            section.add_argument(flag_name(field.name), dest=field.name, **keywords)


def _keywords(field: "Field[Any]") -> dict[str, Any]:
    """argparse's arguments for one field; the help says when a flag has no effect here."""
    option = option_of(field)
    reason = NO_EFFECT.get(field.name)
    text = reason or option.help
    keywords: dict[str, Any] = {"help": text.replace("%", "%%"), "default": SUPPRESS}
    if option.parse is None:
        return keywords | {"action": "store_true"}
    keywords |= {"type": option.parse, "metavar": option.metavar}
    if option.choices:
        keywords |= {"choices": option.choices, "metavar": "{" + ",".join(option.choices) + "}"}
    if option.many:
        keywords |= {"action": "append"} if option.many == "append" else {"nargs": option.many}
    if option.many == "?":
        keywords |= {"const": ""}
    return keywords


def parse_flags(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Flags:
    """Parse `argv` (without the program's name), then COMMANDLINE_ARGS of `environ` appended to it.

    Raises `UsageError` for an unknown flag (naming the nearest known one), a value out of range, or two flags that
    contradict each other. `--help` prints and leaves through `SystemExit(0)`.
    """
    words = list(argv)
    if "--test-server" not in words:
        words += _environment_words(environ or {})
    parser = _Parser(prog="launch.py", usage=_USAGE, allow_abbrev=False)
    add_arguments(parser)
    namespace, unknown = parser.parse_known_args(words)
    if unknown and not set(_options_in(unknown)) <= extension_options(namespace):
        raise UsageError(_unknown_message(unknown, parser._actions))
    return flags_from(namespace)


_USAGE = "launch.py [flags] serves the page; launch.py COMMAND [--help] does one thing and ends"
_COMMANDS = (
    "Commands, each with --help: txt2img and img2img (images without a server), plan (what an image needs), get "
    "(model files), lora (example adapters), user, "
    "offload-clean, extensions (try them), doctor (what is wrong), update, texts (translations){}. "
    "launch.py --test [pytest arguments] runs all checks. Words in the environment variable COMMANDLINE_ARGS are "
    "added at the end."
)


_ADDED = re.compile(r"""add_argument\(\s*["'](--[\w-]+)["']""")


def extension_options(namespace: Namespace) -> set[str]:
    """The flags that `preload.py` of user extensions add, as their texts say; they read these themselves."""
    folder = Path(getattr(namespace, "data_dir", None) or Path(__file__).parents[2]) / "extensions"
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in folder.glob("*/preload.py"))
    return {name for text in texts for name in _ADDED.findall(text)}


def _options_in(words: Sequence[str]) -> list[str]:
    """The flags among words; a word that belongs to none is taken for one."""
    found = [word.partition("=")[0] for word in words if word.startswith("-")]
    return found or list(words)


def _environment_words(environ: Mapping[str, str]) -> list[str]:
    try:
        return shlex.split(environ.get("COMMANDLINE_ARGS", ""))
    except ValueError as error:
        raise UsageError(f"COMMANDLINE_ARGS cannot be split into words: {error}. Check its quotes.") from None


def _unknown_message(unknown: Sequence[str], actions: Iterable[Action]) -> str:
    known = [name for action in actions for name in action.option_strings]
    messages = []
    for word in (word for word in unknown if word.startswith("-")):
        name = word.partition("=")[0]
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        messages.append(f"unknown flag {name}" + (f"; did you mean {near[0]}?" if near else ""))
    if not messages:
        messages = [f"{word!r} belongs to no flag" for word in unknown]
    return "; ".join(messages) + " (python launch.py --help lists everything)"


def flags_from(namespace: Namespace) -> Flags:
    """A `Flags` from a parsed namespace that may lack flags and may hold foreign ones; checks them together."""
    known = {field.name for field in fields(Flags)}
    given: dict[str, Any] = {name: _frozen(item) for name, item in vars(namespace).items() if name in known}
    if given.get("test_server"):
        given |= {"api": True, "skip_torch_cuda_test": True, "disable_nan_check": True}
    if given.get("nowebui"):
        given |= {"api": True}
        given.setdefault("port", DEFAULT_API_PORT)
    if given.get("add_stop_route"):
        given |= {"api_server_stop": True}
    flags = Flags(**given)
    _check_together(flags)
    return flags


def _frozen(item: object) -> object:
    return tuple(item) if isinstance(item, list) else item


def _check_together(flags: Flags) -> None:
    for field in fields(Flags):
        if field.name in TUNNELS and getattr(flags, field.name) != field.default:
            raise UsageError(f"{flag_name(field.name)} {NO_TUNNEL}")
    if flags.precision == "half" and (flags.no_half or flags.no_half_vae):
        name = "--no-half" if flags.no_half else "--no-half-vae"
        raise UsageError(f"--precision half and {name} contradict each other: give only one of them")
    if (flags.tls_keyfile is None) != (flags.tls_certfile is None):
        raise UsageError("HTTPS needs both --tls-keyfile and --tls-certfile")
    if flags.farm and not flags.workers:
        raise UsageError("--farm needs --workers N: how many workers the cluster runs for this server")


def without_effect(flags: Flags) -> dict[str, str]:
    """Flags that were given and do nothing here, as "--flag" -> reason; the start logs one line for each."""
    return {
        flag_name(field.name): NO_EFFECT[field.name]
        for field in fields(Flags)
        if field.name in NO_EFFECT and getattr(flags, field.name) != field.default
    }


def public_flags(flags: Flags, defaults: Mapping[str, object] | None = None) -> dict[str, object]:
    """All flags under the reference UI's names for `/sdapi/v1/cmd-flags`, JSON-ready; secrets are hidden.

    `defaults` (such as `Paths.as_flags()`) fills flags that were not given. Where the reference UI's schema has a
    string or null (port, device_id, chunk sizes), so has this.
    """
    shown: dict[str, object] = {field.name: _json(getattr(flags, field.name)) for field in fields(Flags)}
    for name, default in (defaults or {}).items():
        shown[name] = shown[name] or default
    for name in ("port", "device_id", "sub_quad_kv_chunk_size", "sub_quad_chunk_threshold"):
        shown[name] = None if shown[name] is None else str(shown[name])
    shown["disable_tls_verify"] = "True" if flags.disable_tls_verify else None
    for name in SECRET_FLAGS:
        shown[name] = HIDDEN_VALUE if shown[name] else None
    shown["ngrok_options"] = {}  # the schema has an object here
    return shown


def _json(item: object) -> object:
    return list(item) if isinstance(item, tuple) else item
