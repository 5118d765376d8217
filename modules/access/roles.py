"""Who somebody is to this server, and what they may do: three roles, each with all that the one before may do."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from modules.errors import FeatherweightError

MARK = "featherweight_role"
F = TypeVar("F", bound=Callable[..., Any])


class NotAllowedError(FeatherweightError):
    """Somebody who is known asks for what their role may not do; the message names the role that may."""

    status = 403


class Role(StrEnum):
    """Viewers look at images, users make them, admins also change the server: settings, models, other people's work."""

    VIEWER = "viewer"
    USER = "user"
    ADMIN = "admin"

    def includes(self, least: "Role") -> bool:
        """Whether this role may do what `least` may."""
        order = list(Role)
        return order.index(self) >= order.index(least)


class Sees(StrEnum):
    """Whose images somebody may look at."""

    OWN = "own"
    ALL = "all"


DEFAULT_SEES = {Role.VIEWER: Sees.ALL, Role.USER: Sees.OWN, Role.ADMIN: Sees.ALL}
"""A viewer makes no images, so that a viewer who sees only their own would see none."""


@dataclass(frozen=True)
class Identity:
    """Somebody who was let in. Without users everybody is the admin without a name.

    `has_folder`: their images are saved in a subfolder of their own. `is_of_page`: a user of the page where the API has
    users of its own (--api-auth), which this one is not. `stamp`: another one when the password is another one.
    """

    name: str = ""
    role: Role = Role.ADMIN
    sees: Sees = Sees.ALL
    has_folder: bool = False
    is_of_page: bool = False
    stamp: str = ""

    @property
    def is_admin(self) -> bool:
        return self.role is Role.ADMIN

    def may_change(self, owner: str) -> bool:
        """Whether the work and the images of `owner` are theirs to change."""
        return self.is_admin or (self.role.includes(Role.USER) and bool(self.name) and owner == self.name)

    @property
    def asks_for(self) -> str | None:
        """Whose work they are shown; None: everybody's."""
        return None if self.is_admin else self.name

    def may_see(self, owner: str) -> bool:
        """Whether they may look at the images of `owner`."""
        return self.is_admin or self.sees is Sees.ALL or (bool(self.name) and owner == self.name)

    def require(self, least: Role, what: str = "This") -> None:
        """Raise `NotAllowedError` where their role may not do what `least` may."""
        if not self.role.includes(least):
            raise NotAllowedError(
                f"{what} needs the role {least.value}, and {self.name or 'nobody in particular'} is {_a(self.role)}. "
                "An admin can change the role: launch.py user role NAME ROLE."
            )


ANYBODY = Identity()
"""Whoever reaches a server without users."""


def open_to(role: Role | str) -> Callable[[F], F]:
    """Let an extension's function, of a route or of the page, be used by this role and those above; without it, only
    admins may. Put it directly above the function."""
    least = Role(role)

    def marked(function: F) -> F:
        setattr(function, MARK, least)
        return function

    return marked


def role_of_function(function: object) -> Role | None:
    """Return what `open_to` said of a function."""
    role = getattr(function, MARK, None)
    return role if isinstance(role, Role) else None


def _a(role: Role) -> str:
    return f"an {role.value}" if role is Role.ADMIN else f"a {role.value}"
