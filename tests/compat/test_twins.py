"""Extensions whose work the program does itself."""

from pathlib import Path

from compat.loading.twins import TWINS, twin_of

BUILT_IN = Path(__file__).parents[2] / "extensions-builtin"


def test_each_twin_is_there_and_steps_in_where_it_is_loaded() -> None:
    assert {name for name in TWINS.values() if not (BUILT_IN / name).is_dir()} == set()
    assert twin_of("SD-WebUI-ControlNet", {"controlnet"}) == "controlnet"
    assert twin_of("sd-webui-controlnet", set()) == "" == twin_of("another", {"controlnet"})
