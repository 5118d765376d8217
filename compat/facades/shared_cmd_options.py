"""`shared.cmd_opts`: the command line with the reference UI's names, and what `preload.py` of extensions added."""

from __future__ import annotations

import argparse
from typing import Any

from compat.host import has_host, host_now


class CommandLine(argparse.Namespace):
    """Flags as attributes, `"name" in cmd_opts`, `hasattr` and `getattr` with a default; paths that were not given are
    those that are used."""

    hide_ui_dir_config = False  # a flag of the reference UI that this program has not

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not has_host():
            raise AttributeError(name)
        host = host_now()
        if name in host.scripts.flags:
            return host.scripts.flags[name]
        if hasattr(host.flags, name):
            value = getattr(host.flags, name)
            return value if value not in (None, ()) else host.paths.as_flags().get(name, _as_theirs(value))
        raise AttributeError(
            f"There is no flag {name!r} (cmd_opts.{name}); python launch.py --help lists those that there are.",
            name=name,
            obj=self,
        )

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and hasattr(self, name)


def _as_theirs(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


cmd_opts = CommandLine()
parser = argparse.ArgumentParser(add_help=False)
"""Accepted; flags of an extension belong into its `preload.py`, which is asked before the command line is read."""
