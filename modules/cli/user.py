"""`python launch.py user ...`: make and change the file of users that --auth-file names."""

import argparse
import getpass
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from modules.access.auth_file import (
    Account,
    AuthFile,
    check_name,
    new_key,
    read_accounts,
    without_key,
    write_accounts,
)
from modules.access.passwords import check_password, hash_password
from modules.access.roles import DEFAULT_SEES, Role, Sees
from modules.cli.running import flags_of, run_guarded
from modules.errors import InvalidValueError, UnknownNameError
from modules.flags.flags import PATHS, add_arguments
from modules.system.paths import resolve_paths

ROOT = Path(__file__).resolve().parent.parent.parent
FILE = "users.json"  # in the data folder, unless --auth-file names another one


def main(argv: Sequence[str]) -> int:
    """Do what the words say. Exit code 0, or 1 with a sentence."""
    arguments = _parser().parse_args(argv)
    return run_guarded(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    chosen = arguments.auth_file
    path = Path(chosen).expanduser().absolute() if chosen else resolve_paths(flags_of(arguments), ROOT).data_dir / FILE
    is_new = arguments.action == "add" and not path.exists()
    accounts = {} if is_new else read_accounts(path)
    act: Callable[[argparse.Namespace, dict[str, Account], Path], dict[str, Account] | None] = ACTIONS[arguments.action]
    changed = act(arguments, accounts, path)
    if changed is None:
        return 0
    write_accounts(path, changed)
    if is_new:
        print(f"Start the server with --auth-file {path}")
    if changed and all(account.role is not Role.ADMIN for account in changed.values()):
        text = "None of the users is an admin: nobody can change settings. Change that: launch.py user role NAME admin"
        print(text, file=sys.stderr)
    return 0


# -- actions: the users as they are from now on, or None where nothing changes -----------------------------------------


def _add(arguments: argparse.Namespace, accounts: dict[str, Account], path: Path) -> dict[str, Account]:
    name = arguments.name
    check_name(name)
    taken = next((other for other in accounts if other.lower() == name.lower()), None)
    if taken is not None:
        raise InvalidValueError(f"There is a user {taken!r} already. Another password: launch.py user passwd {taken}.")
    account = Account(
        name=name,
        role=Role(arguments.role),
        password=hash_password(_password(arguments)),
        sees=Sees(arguments.sees) if arguments.sees else None,
        created=time.strftime("%Y-%m-%d"),
    )
    print(f"{name} is added as {account.role.value}.")
    return {**accounts, name: account}


def _remove(arguments: argparse.Namespace, accounts: dict[str, Account], path: Path) -> dict[str, Account]:
    account = _found(arguments.name, accounts)
    print(f"{account.name} is removed; their images and their part of the history stay.")
    return {name: other for name, other in accounts.items() if name != account.name}


def _passwd(arguments: argparse.Namespace, accounts: dict[str, Account], path: Path) -> dict[str, Account]:
    account = _found(arguments.name, accounts)
    changed = replace(account, password=hash_password(_password(arguments)))
    print(f"{account.name} has another password; whoever is logged in as {account.name} has to log in again.")
    return {**accounts, account.name: changed}


def _role(arguments: argparse.Namespace, accounts: dict[str, Account], path: Path) -> dict[str, Account]:
    account = _found(arguments.name, accounts)
    sees = Sees(arguments.sees) if arguments.sees else None
    print(f"{account.name} is {arguments.role} from now on.")
    return {**accounts, account.name: replace(account, role=Role(arguments.role), sees=sees)}


def _key(arguments: argparse.Namespace, accounts: dict[str, Account], path: Path) -> dict[str, Account]:
    account = _found(arguments.name, accounts)
    if arguments.remove:
        print(f"The key {arguments.remove} of {account.name} is removed.")
        return {**accounts, account.name: without_key(account, arguments.remove)}
    changed, text = new_key(account, arguments.title)
    print("Keep this key: it is shown only now. Send it as: Authorization: Bearer KEY", file=sys.stderr)
    print(text)
    return {**accounts, account.name: changed}


def _list(arguments: argparse.Namespace, accounts: dict[str, Account], path: Path) -> None:
    for notice in AuthFile(path).notices if accounts else ():
        print(notice, file=sys.stderr)
    for account in accounts.values():
        sees = account.sees or DEFAULT_SEES[account.role]
        print(f"{account.name}\t{account.role.value}\tsees {sees.value} images\tsince {account.created or 'unknown'}")
        for key in account.keys:
            print(f"\tkey {key.id}\t{key.title}\tsince {key.created}")


ACTIONS = {"add": _add, "remove": _remove, "passwd": _passwd, "role": _role, "key": _key, "list": _list}


def _found(name: str, accounts: dict[str, Account]) -> Account:
    if name not in accounts:
        raise UnknownNameError.of("user", name, accounts)
    return accounts[name]


def _password(arguments: argparse.Namespace) -> str:
    """Typed twice without showing, or the first line of what is piped in."""
    if not sys.stdin.isatty():
        password = sys.stdin.readline().rstrip("\r\n")
        check_password(password)
        return password
    password = getpass.getpass(f"Password of {arguments.name}: ")
    check_password(password)
    if getpass.getpass("Once more: ") != password:
        raise InvalidValueError("The two passwords differ; nothing was changed.")
    return password


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launch.py user", description="Users with passwords, roles and API keys, for a server with --auth-file."
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--auth-file", metavar="FILE", help=f"the file (default: {FILE} in the data folder)")
    add_arguments(common, (PATHS,))
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    roles = [role.value for role in Role]

    def action(name: str, text: str, names: bool = True) -> argparse.ArgumentParser:
        found = actions.add_parser(name, help=text, description=text, parents=[common])
        if names:
            found.add_argument("name", metavar="NAME")
        return found

    add = action("add", "add a user; the password is asked for, or read from standard input")
    add.add_argument("--role", choices=roles, default=Role.USER.value, help="what they may do (default: user)")
    action("remove", "remove a user; images stay")
    action("passwd", "give a user another password, which ends their logins")
    role = action("role", "give a user another role")
    role.add_argument("role", choices=roles)
    for one in (add, role):
        one.add_argument(
            "--sees", choices=[sees.value for sees in Sees], help="whose images they see (default: users their own)"
        )
    key = action("key", "make an API key, which is shown once")
    key.add_argument("--title", default="", help="what it is for")
    key.add_argument("--remove", metavar="ID", help="remove a key instead")
    action("list", "say who there is", names=False)
    return parser
