"""The scripts of one tab as `p.scripts` and `modules.scripts.scripts_txt2img` show them: lists of scripts, each with
the place of its arguments in one flat list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from modules.scripts.acting import acting, acting_now
from modules.scripts.foreign import ScriptArgs
from modules.scripts.library import LeftOutError, ScriptLibrary, default_args
from modules.scripts.script import Script

if TYPE_CHECKING:
    from compat.processing import StableDiffusionProcessing
    from modules.scripts.job import Processed


class JobScripts:
    """`args[0]` is the number of the selected script (0: none); behind it stand the arguments of all scripts. A copy
    with other `alwayson_scripts`, set at a job that a script builds, says which of them take part in it."""

    def __init__(self, alwayson: Sequence[Script], selectable: Sequence[Script]) -> None:
        self.alwayson_scripts = list(alwayson)
        self.selectable_scripts = list(selectable)
        self.args: list[Any] = [0]
        self.is_img2img = False

    @classmethod
    def of(
        cls,
        alwayson: Sequence[ScriptArgs],
        selectable: Sequence[Script],
        is_img2img: bool,
        selected: ScriptArgs | None = None,
    ) -> JobScripts:
        """List those of a tab, or of a job, with their arguments."""
        found = cls([script for script, _ in alwayson], selectable)
        found.is_img2img = is_img2img
        for script, args in alwayson:
            found._place(script, args)
        if selected is not None:
            found._place(*selected)
            found.args[0] = found.selectable_scripts.index(selected[0]) + 1
        return found

    @classmethod
    def with_defaults(cls, library: ScriptLibrary, is_img2img: bool) -> JobScripts:
        """Show those of a tab, with the defaults of their controls; a script whose controls cannot be built has
        none."""
        found = cls(library.alwayson_of(is_img2img), library.selectable_of(is_img2img))
        found.is_img2img = is_img2img
        for script in found.scripts:
            try:
                found._place(script, default_args(script))
            except LeftOutError:
                found._place(script, ())
        return found

    def _place(self, script: Script, args: Sequence[Any]) -> None:
        script.args_from = len(self.args)
        self.args += args
        script.args_to = len(self.args)

    @property
    def scripts(self) -> list[Script]:
        """All of them."""
        return [*self.alwayson_scripts, *self.selectable_scripts]

    @property
    def titles(self) -> list[str]:
        """Titles of those that can be selected."""
        return [script.title() for script in self.selectable_scripts]

    @property
    def title_map(self) -> dict[str, Script]:
        """All of them by their titles in lower case."""
        return {script.title().lower(): script for script in self.scripts}

    def initialize_scripts(self, is_img2img: bool) -> None:
        """Do nothing: the scripts of a tab are those that were loaded."""

    def create_script_ui(self, script: Script) -> None:
        """Do nothing: the page builds the controls of each script once."""

    def before_process(self, p: StableDiffusionProcessing) -> None:
        """See `_call_again`."""
        self._call_again("before_process", p)

    def process(self, p: StableDiffusionProcessing) -> None:
        """See `_call_again`."""
        self._call_again("process", p)

    def postprocess(self, p: StableDiffusionProcessing, processed: Processed) -> None:
        """See `_call_again`."""
        self._call_again("postprocess", p, processed)

    def _call_again(self, hook: str, p: StableDiffusionProcessing, *objects: Any) -> None:
        """Call a hook of the other user extensions, as one does around jobs that it makes inside of another,
        so that they take off what they put on the model. Scripts of ours leave nothing on it. One that fails is
        noted at its extension."""
        author = acting_now()
        for script in self.alwayson_scripts:
            is_own = author is not None and script.acting is not None and script.acting.owner is author.owner
            if is_own or not script.is_foreign or getattr(type(script), hook) is getattr(Script, hook):
                continue
            try:
                with acting(script.acting):
                    getattr(script, hook)(p, *objects, *p.script_args[script.args_from : script.args_to])
            except (Exception, SystemExit) as error:  # somebody else's code
                script.failed(hook, error)

    def script(self, title: str) -> Script | None:
        """The script of a title, in any case."""
        return self.title_map.get(title.lower())

    def run(self, p: StableDiffusionProcessing, *args: Any) -> Processed | None:
        """Run the script whose number is the first argument; None: there is none, or it leaves the images to the
        program."""
        place = int(args[0]) if args else 0
        if not 0 < place <= len(self.selectable_scripts):
            return None
        script = self.selectable_scripts[place - 1]
        return script.run(p, *args[script.args_from or 1 : script.args_to or 1])
