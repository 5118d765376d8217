"""The pip that an install.py finds: it refuses what would break the program, then runs the real one."""

import runpy
import sys
from importlib import invalidate_caches
from pathlib import Path


def main(args: list[str] | None = None) -> int:
    """Run pip with these words. Returns its exit status."""
    from compat.store.packages import NotInstalledHere, PipWords, program_pins

    words = sys.argv[1:] if args is None else args
    try:
        PipWords.of(words, Path.cwd()).check(program_pins())
    except NotInstalledHere as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return 1
    guarded = str(Path(__file__).parents[1])
    sys.path[:] = [path for path in sys.path if path != guarded]
    for name in [name for name in sys.modules if name.partition(".")[0] == "pip"]:
        del sys.modules[name]
    invalidate_caches()
    sys.argv = ["pip", *words]
    try:
        runpy.run_module("pip", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    return 0
