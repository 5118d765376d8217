"""`modules.restart`: starting and stopping the program, which its user does."""

from __future__ import annotations

from compat.facades.refusal import refusing


def is_restartable() -> bool:
    """Extensions cannot start the program again."""
    return False


def restart_program() -> None:
    """Accepted; the page is built again by Reload UI, and the program goes on."""


_STOP = "POST /sdapi/v1/server-stop stops the server where --api-server-stop allows it."
__getattr__ = refusing("restart", {"stop_program": _STOP})
