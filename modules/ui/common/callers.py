"""Who calls the page's functions, and whether they may: every call goes through one place."""

from typing import Any

import gradio as gr

from modules.access.roles import ANYBODY, Identity, NotAllowedError, Role, role_of_function
from modules.api.access.permissions import role_of_call
from modules.services import Services
from modules.system.texts import page_text

GONE = page_text("You are not logged in any more: your login has ended, or your user was changed. Reload the page.")


def identity_of_page(services: Services, sent: gr.Request | None) -> Identity:
    """Who called a function of the page. Raises `NotAllowedError` for a user who was removed meanwhile."""
    if not services.access.page_is_closed:
        return ANYBODY
    found = services.access.named(getattr(sent, "username", None) or "")
    if found is None:
        raise NotAllowedError(GONE)
    return found


def least_role(function: Any) -> Role:
    """Whose least role may call a function of the page; admins only where nothing is said."""
    if function is None:
        return Role.VIEWER  # an event that only runs the page's script
    named = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    return role_of_call(named) or role_of_function(function) or Role.ADMIN


FOR_CLIENTS = ("api_info", "api_info_as_input", "api_info_as_output", "example_inputs", "skip_api")
"""What Gradio says of a component to programs that call the page's functions; its page reads none of it."""

UNSET_OF_EVENTS = (
    *("api_description", "rendered_in", "render_id", "js_implementation", "time_limit", "scroll_to_output"),
    *("collects_event_data", "trigger_only_on_success", "trigger_only_on_failure"),
)
"""What Gradio says of every event, and its page reads alike where it is not said: null or false."""


def _likeness(part: dict[str, Any]) -> tuple[str, str, str, int]:
    """Sorts components so that those of one type and one label follow each other."""
    props = part["props"]
    return part["type"], str(props.get("label")), str(props.get("elem_id")), part["id"]


class GuardedBlocks(gr.Blocks):
    """A page whose functions ask for a role; set `services` before it is served."""

    services: Services | None = None

    def get_config_file(self) -> Any:
        """Return Gradio's, without what only calling programs read of components that no function for them has: it is a
        third of the page. Components that are alike stand together, which compresses to less; the page finds them by
        their ids."""
        config = super().get_config_file()
        public = [function for function in self.fns.values() if function.api_visibility != "private"]
        described = {block._id for function in public for block in (*function.inputs, *function.outputs)}
        for part in config["components"]:
            part["props"].pop("preserved_by_key", None)
            if part.get("key") is None:
                part.pop("key", None)
            if part["id"] not in described:
                for name in FOR_CLIENTS:
                    part.pop(name, None)
            if type(self.blocks[part["id"]]).__module__.startswith("gradio."):
                part.pop("component_class_id", None)  # a hash, which the page needs of foreign ones only
        for event in config["dependencies"]:
            for name in UNSET_OF_EVENTS:
                if not event.get(name):
                    event.pop(name, None)
        config["components"].sort(key=_likeness)
        return config

    async def process_api(self, block_fn: Any, *args: Any, **keywords: Any) -> dict[str, Any]:
        """Process as Gradio does, which is the one way to every function, for who may call it."""
        if self.services is not None and self.services.access.page_is_closed:
            function = self.fns[block_fn] if isinstance(block_fn, int) else block_fn
            self._check(function.fn, args, keywords)
        return await super().process_api(block_fn, *args, **keywords)

    def _check(self, function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        assert self.services is not None
        request = keywords.get("request", args[2] if len(args) > 2 else None)
        page = keywords.get("session_hash", args[4] if len(args) > 4 else None)
        for one in request if isinstance(request, list) else [request]:
            try:
                identity = identity_of_page(self.services, one)
                identity.require(least_role(function))
                session = page or getattr(one, "session_hash", None)
                if session and not self.services.access.sessions.claims(session, identity.name):
                    raise NotAllowedError("This is another user's page. Reload yours.")
            except NotAllowedError as error:
                raise gr.Error(str(error), print_exception=False) from error
