"""Who may use this server, and for what: users, roles, sessions, keys."""

from modules.access.access import Access, Users, access_of, check_protected, is_loopback

__all__ = ["Access", "Users", "access_of", "check_protected", "is_loopback"]
