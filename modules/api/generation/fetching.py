"""Images that a caller of the API names by URL: fetched only where a setting allows it, and never from this machine or
its network unless another setting allows that too."""

from __future__ import annotations

from dataclasses import dataclass

from modules.downloads.transport import AskOptions, FileTransport
from modules.errors import FeatherweightError, InvalidValueError
from modules.settings.values import Settings
from modules.system.public_addresses import Resolve, resolve
from modules.version import PROGRAM_VERSION

MAX_BYTES = 64 * 1024 * 1024
MAX_SECONDS = 30.0


@dataclass(frozen=True)
class FetchLimits:
    """The limits for one image, redirects included."""

    size_bytes: int = MAX_BYTES
    seconds: float = MAX_SECONDS


def is_url(text: str) -> bool:
    """Tell whether a field that holds an image names one by URL."""
    return text.lstrip()[:8].lower().startswith(("http://", "https://"))


def fetch(
    url: str, what: str, settings: Settings, find_addresses: Resolve = resolve, limits: FetchLimits | None = None
) -> bytes:
    """Return the bytes behind a URL. Raises `InvalidValueError`, beginning with `what`, where URLs are not allowed, for
    an address that must not be reached, and for anything that goes wrong on the way."""
    options, limits = settings.api, limits or FetchLimits()
    if not options.api_enable_requests:
        raise InvalidValueError(
            f"{what} is an address; images are not fetched. Send the file itself as base64 text, or switch on "
            "api_enable_requests in Settings > API."
        )
    asking = AskOptions(
        plain_http=True,
        own_network=not options.api_forbid_local_requests,
        agent=options.api_useragent or PROGRAM_VERSION,
        remedy="Send the file itself as base64 text.",
    )
    transport = FileTransport(find_addresses=find_addresses, options=asking)
    try:
        with transport.get(url, within_s=limits.seconds) as reply:
            return reply.read(limits.size_bytes)
    except FeatherweightError as error:
        raise InvalidValueError(f"{what} cannot be fetched: {error}") from error
