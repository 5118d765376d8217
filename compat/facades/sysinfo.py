"""`modules.sysinfo`: what describes the system. GET /internal/sysinfo has more."""

from __future__ import annotations

import json
import platform
import sys
from typing import Any

from compat.facades.refusal import refusing


def pretty_bytes(num: float, suffix: str = "B") -> str:
    """A size for people: "1.5GB", by 1024."""
    for unit in ("", "K", "M", "G", "T", "P"):
        if abs(num) < 1024 or unit == "P":
            return f"{num:.0f}{unit}{suffix}"
        num /= 1024
    return f"{num:.0f}{suffix}"


def get_dict() -> dict[str, Any]:
    """Platform, Python, the version of the program, and its extensions."""
    from compat.facades.extensions import active
    from modules.version import PROGRAM_VERSION

    return {
        "Platform": platform.platform(),
        "Python": sys.version.split()[0],
        "Version": PROGRAM_VERSION,
        "Extensions": [one.to_dict() for one in active() if not one.is_builtin],
    }


def get() -> str:
    """Return the same as JSON."""
    return json.dumps(get_dict(), indent=4)


_REASON = "GET /internal/sysinfo describes the system."
__getattr__ = refusing("sysinfo", dict.fromkeys(("check", "get_config", "get_extensions", "checksum_token"), _REASON))
