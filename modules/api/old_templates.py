"""Templates of extensions as older versions of Starlette took them: the name first, the request in the context."""

from functools import wraps
from typing import Any


def understand_old_templates() -> None:
    """Have `Jinja2Templates.TemplateResponse("index.html", {"request": request})` mean what it meant; once is enough.
    Does nothing without Jinja2, which Gradio brings."""
    try:
        from fastapi.templating import Jinja2Templates
    except (ImportError, AssertionError):  # Starlette asserts that Jinja2 is there
        return
    answer = Jinja2Templates.TemplateResponse
    if hasattr(answer, "__wrapped__"):
        return

    @wraps(answer)
    def answering(self: Any, *args: Any, **keywords: Any) -> Any:
        if args and isinstance(args[0], str):
            name, *rest = args
            context = dict(rest.pop(0) if rest else keywords.pop("context", {}))
            args = (context.get("request"), name, context, *rest)
        elif "request" not in keywords and "request" in (keywords.get("context") or {}):
            keywords["request"] = keywords["context"]["request"]
        return answer(self, *args, **keywords)

    setattr(Jinja2Templates, "TemplateResponse", answering)  # noqa: B010 - mypy allows no assignment to a method
