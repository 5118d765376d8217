"""The program itself: start, console, API, profiler, training and captioning."""

from modules.settings.group import SettingsGroup, choice, flag, many, text, whole
from modules.settings.setting import Section


class SystemSettings(SettingsGroup):
    """Start, console and files."""

    section = Section(id="system", title="System", category="System")

    auto_launch_browser = choice(
        "Open the page in the browser on startup",
        "Local",
        ("Disable", "Local", "Remote"),
        hint="Local: only where no other machine can reach the page; Remote: always. Never without a screen.",
    )
    enable_console_prompts = flag("Print prompts to the console when a job starts", False)
    samples_log_stdout = flag("Print the infotext of every image to the console", False)
    queue_limit = whole(
        "Maximum number of queued jobs",
        256,
        minimum=1,
        maximum=10000,
        hint="More jobs are refused until the queue is shorter.",
    )
    queue_starts_paused = flag(
        "Pause the queue at start if it has jobs from before", False, hint="Otherwise they go on at once."
    )
    queue_retries = whole(
        "How often a job is tried again if the server was killed while it ran",
        2,
        minimum=0,
        maximum=1000,
        hint="Counted again after each finished image. Stopping the server normally does not count.",
    )
    queue_groups_models = flag(
        "Run waiting jobs of the loaded model first",
        True,
        hint="Fewer changes of model. No job is passed over more than a dozen times, and users take turns.",
    )
    queue_resume_after = whole(
        "Seconds of sampling from which an image can resume after a crash",
        30,
        minimum=0,
        maximum=100000,
        hint="Per pass; faster images start again from their first step.",
    )
    queue_resume_every = whole(
        "Seconds between saves of a long image",
        10,
        minimum=0,
        maximum=100000,
        hint="Later steps are lost if the server is killed.",
    )
    queue_resume_megabytes = whole(
        "Maximum megabytes on disk for saves of long images",
        2048,
        minimum=0,
        maximum=1000000,
        hint="Freed when an image is finished. 0: long images are not saved.",
    )
    queue_kept_jobs = whole(
        "Number of finished jobs that the queue remembers",
        1000,
        minimum=0,
        maximum=100000,
        hint="With their start images. Bookmarked jobs are always kept; images are not affected.",
    )
    worker_interrupt_grace = whole(
        "Seconds that a worker process may take to stop before it is ended",
        60,
        minimum=0,
        maximum=3600,
        hint="After Interrupt; finished images are kept, and the worker starts again. 0: no limit.",
    )
    queue_done_command = text(
        "Command that the queue may run when it is done",
        "",
        hint="A program and its arguments, chosen on the tab Queue under When done. Only config.json sets it: write "
        "it there while the server is stopped.",
        api_writable=False,
        by_hand=True,
    )
    list_hidden_files = flag("Load models from hidden directories", True, hidden=True)
    disable_mmap_load_safetensors = flag(
        "Disable memmapping for loading .safetensors files.",
        False,
        hint="By default the CPU uses pages of the file as weights. Switch this on if files are overwritten while in "
        "use.",
    )


class ApiSettings(SettingsGroup):
    """Images that callers of the API name by URL."""

    section = Section(id="API", title="API", category="System")

    api_enable_requests = flag(
        "Allow http:// and https:// URLs for input images in API",
        False,
        api_writable=False,
        hint="The server then fetches images from URLs in API requests: at most 64 MB, within 30 seconds.",
    )
    api_forbid_local_requests = flag(
        "Forbid URLs to local resources",
        True,
        api_writable=False,
        hint="Keeps a caller from reaching this machine and its network through such a URL.",
    )
    api_useragent = text("User agent for requests", "", api_writable=False, hint="Empty: this program's name.")


class HiddenSettings(SettingsGroup):
    """Extensions, as the page of extensions stores them."""

    section = Section(id="hidden", title="Hidden options")

    disabled_extensions = many("disabled_extensions", (), hidden=True)
    disable_all_extensions = text("disable_all_extensions", "none", hidden=True)
