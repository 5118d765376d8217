"""Logging in and out on the page, and who one is."""

import base64
import hashlib
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse

from modules.access.roles import Identity
from modules.api.access.auth import TOO_MANY, PasswordCheck, identity_of, session_cookie
from modules.api.schema.documentation import documented
from modules.api.schema.errors import reply
from modules.api.schema.reply_models import MeReply
from modules.services import Services

MAX_FORM_BYTES = 16 * 1024
WRONG = "The name or the password is wrong. Large and small letters differ."
BUSY = "Too many logins at once; try again in a moment."
EXPIRES = "A login ends after {idle} h without use, and after {longest} h in any case."

# A link from another site leads here without the strict cookie, although somebody is logged in: ask again from here.
SCRIPT = """fetch("internal/me").then((r) => (r.ok ? r.json() : null)).then((me) => {
if (me && me.name) location.replace("./"); });"""
STYLE = """:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:0;min-height:100vh;display:grid;
place-items:center;background:Canvas;color:CanvasText}main{width:min(22rem,90vw)}h1{font-size:1.4rem;margin:0 0 1rem}
label{display:block;margin:.75rem 0 .25rem}input,button{font:inherit;width:100%;box-sizing:border-box;padding:.6rem;
border:1px solid GrayText;border-radius:6px}button{margin-top:1.25rem;background:#0f766e;color:#fff;
border-color:#0f766e;cursor:pointer}
[role=alert]{border-left:4px solid #dc2626;padding:.25rem .75rem;margin:.75rem 0}small{color:GrayText}"""
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Log in - Featherweight</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head><body><main>
<h1>Featherweight</h1>{message}<form method="post" action="login">
<label for="username">Name</label><input id="username" name="username" autocomplete="username" autocapitalize="none"
spellcheck="false" required autofocus>
<label for="password">Password</label><input id="password" name="password" type="password"
autocomplete="current-password" required>
<button type="submit">Log in</button></form><p><small>{note}</small></p></main>
<script>{script}</script></body></html>"""


def login_routes(services: Services, checks: PasswordCheck) -> APIRouter:
    """GET and POST /login and /logout where there are users of the page, and GET /internal/me."""
    routes = APIRouter(tags=["page"])
    access, cookie = services.access, session_cookie(services.flags.port)

    @routes.get("/internal/me", **documented({"name": "anna", "role": "user", "sees": "own", "can_log_out": True}))
    def me(request: Request) -> MeReply:
        """Who one is to this server; without users an admin without a name."""
        identity = identity_of(request)
        can_log_out = cookie in request.cookies and access.page_is_closed
        return MeReply(name=identity.name, role=identity.role, sees=identity.sees, can_log_out=can_log_out)

    if not access.page_is_closed:
        return routes

    def form(message: str = "", status: int = 200, headers: dict[str, str] | None = None) -> HTMLResponse:
        alert = f'<p role="alert">{message}</p>' if message else ""
        note = EXPIRES.format(idle=services.flags.session_idle_hours, longest=services.flags.session_hours)
        page = PAGE.format(style=STYLE, script=SCRIPT, message=alert, note=note)
        return HTMLResponse(page, status, {**PROTECTED, **(headers or {})})

    @routes.get("/login", include_in_schema=False)
    def login_page() -> HTMLResponse:
        """The form."""
        return form()

    @routes.post("/login", include_in_schema=False)
    async def login(request: Request) -> Response:
        """Begin a session. Browsers get the page, programs JSON, both a cookie."""
        wants_page = "text/html" in request.headers.get("accept", "")

        def refused(status: int, text: str, wait_s: int = 0) -> Response:
            headers = {"Retry-After": str(wait_s)} if wait_s else {}
            return form(text, status, headers) if wants_page else reply(status, "Unauthorized", text, headers=headers)

        data = await _limited(request)
        if data is None:
            return refused(413, "The form is too long.")
        fields = parse_qs(data.decode("utf-8", "replace"), keep_blank_values=True)
        name, password = (fields.get(key, [""])[0] for key in ("username", "password"))
        address = request.client.host if request.client else ""
        wait_s = access.throttle.wait_s(address, name)
        if wait_s:
            return refused(429, TOO_MANY.format(wait_s), wait_s)
        try:
            identity = await checks.run(access.login, name, password)
        except TimeoutError:
            return refused(503, BUSY)
        if identity is None:
            access.throttle.failed(address, name)
            return refused(400, WRONG)
        access.throttle.succeeded(address, name)
        return begun(request, identity, wants_page)

    def begun(request: Request, identity: Identity, wants_page: bool) -> Response:
        old = request.cookies.get(cookie)
        if old:
            access.sessions.close(old)
        reply: Response = RedirectResponse("./", 303) if wants_page else JSONResponse({"success": True})
        reply.set_cookie(
            cookie,
            access.sessions.open(identity),
            max_age=round(access.sessions.longest_s),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
            path="/",
        )
        return reply

    async def logout(request: Request) -> Response:
        """End the session of the one who asks."""
        access.sessions.close(request.cookies.get(cookie, ""))
        reply = RedirectResponse("login", 303)
        reply.delete_cookie(cookie, path="/", httponly=True, samesite="strict")
        return reply

    routes.post("/logout", include_in_schema=False)(logout)
    routes.get("/logout", include_in_schema=False)(logout)
    return routes


async def _limited(request: Request) -> bytes | None:
    """The body of a form; None for one that is too long to be a login."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_FORM_BYTES:
            return None
    return bytes(data)


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


PROTECTED = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",  # without any, a browser sends the form with `Origin: null`
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": (
        f"default-src 'none'; style-src {_source(STYLE)}; script-src {_source(SCRIPT)}; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
}
