"""The Extensions tab over HTTP: what there is and what of it failed; installing, updating, switching, removing."""

from collections.abc import Mapping
from pathlib import Path

from fastapi import APIRouter
from pydantic import Field

from compat.store.origin import origin_of
from compat.store.packages import (
    RECORD,
    NotInstalledHere,
    PackagePlan,
    install_checked,
    install_packages,
    missing_packages,
    plan_for,
    program_pins,
    run_installer,
    undo_last,
)
from compat.store.store import ExtensionStore, NotAgreed, read_index, size_bytes
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import (
    ExtensionDone,
    ExtensionItem,
    ExtensionList,
    ExtensionOffer,
    FaultItem,
    InstalledExtension,
)
from modules.api.schema.schemas import Tolerant
from modules.errors import InvalidValueError
from modules.scripts.extension import Extension, Fault
from modules.scripts.library import ScriptLibrary
from modules.scripts.script import Script, ScriptHooks
from modules.services import Services

NO_SUCH = {404: "Unknown installed extension 'mine'. Known: none."}
CLOSED = "Other machines reach this server, so that extensions cannot be installed, updated or removed by it."
ASKS = "sd-webui-mine runs code of strangers with the rights of this program."
AGAIN = "Start the program again to load it."


class ExtensionName(Tolerant):
    """One extension."""

    name: str = Field(max_length=200, examples=["sd-webui-mine"])


class SwitchBody(ExtensionName):
    """Whether it is loaded at the next start."""

    enabled: bool = Field(examples=[False])


class AgreedName(ExtensionName):
    """One extension, and whether the user said yes to the question."""

    agreed: bool = False


class InstallBody(Tolerant):
    """Where an extension comes from: an address of git, an archive (address or file), or a folder."""

    source: str = Field(min_length=1, max_length=2000, examples=["https://example.org/sd-webui-mine"])
    name: str = Field(default="", max_length=100, description="of its folder; empty: as the source is called")
    branch: str = Field(default="", max_length=200)
    agreed: bool = Field(default=False, description="whether the user said yes to the question")


class PackagesBody(AgreedName):
    """Packages to install: those of an extension, or with an empty name the optional set."""


def store_of(services: Services) -> ExtensionStore:
    """The store of this program; closed where other machines reach it, unless the command line says otherwise."""
    is_open = services.access.is_local or services.flags.enable_insecure_extension_access
    transport = services.downloads.transport if services.downloads else None
    return ExtensionStore(services.paths.extensions_dir, services.paths.cache_dir, is_open, transport=transport)


def installed_routes(services: Services) -> APIRouter:
    """Return the reference UI's list of installed extensions."""
    routes = APIRouter(prefix="/sdapi/v1", tags=["lists"])

    @routes.get("/extensions")
    def extensions() -> list[ExtensionItem]:
        """The extensions in the user's folder, those that are switched off too."""
        found = [one for one in services.scripts.extensions.values() if not one.is_built_in]
        return [_extension_item(one) for one in found]

    return routes


def _extension_item(extension: Extension) -> ExtensionItem:
    origin = origin_of(extension.folder)
    return ExtensionItem(
        name=extension.name,
        remote=origin.address,
        branch=origin.branch,
        commit_hash=origin.commit,
        version=origin.version,
        commit_date=int(extension.folder.stat().st_mtime),
        enabled=extension.is_enabled,
    )


def extension_store_routes(services: Services) -> APIRouter:
    """The routes below /featherweight/v1/extensions."""
    routes = APIRouter(prefix="/featherweight/v1/extensions", tags=["server"])
    store = store_of(services)

    @routes.get("")
    def extensions() -> ExtensionList:
        """All extensions: what they take part in, what failed and why, what they cost."""
        computed, pins = services.workers.extension_facts(), program_pins()
        found = [
            _item(services, store, extension, pins, *computed.get(extension.name, ((), extension.image_s)))
            for extension in (*services.scripts.extensions.values(), *_not_loaded(services, store))
        ]
        return ExtensionList(
            extensions=[item for item in found if item.is_built_in or Path(item.folder).is_dir()],
            may_change=store.is_open,
            removed=[name for name in store.restorable if not (store.folder / name).is_dir()],
            may_undo_packages=store.is_open and (services.paths.cache_dir / RECORD).is_file(),
            optional_packages=missing_packages(),
        )

    @routes.get("/index", **documented(errors={422: "The index x.json is no JSON file: Expecting value."}))
    def index(source: str, search: str = "") -> list[ExtensionOffer]:
        """List what an index file offers, from an address or a file of the server's machine; of these, what holds all
        words of `search`."""
        store.check_open()
        offers = read_index(source, search, store.transport)
        return [
            ExtensionOffer(name=one.name, address=one.address, description=one.description, tags=list(one.tags))
            for one in offers
        ]

    @routes.post("/switch", **documented(errors=NO_SUCH))
    def switch(body: SwitchBody) -> ExtensionDone:
        """Load an extension at the next start, or leave it out."""
        if body.name not in services.scripts.extensions:
            store.place_of(body.name)
        off = [name for name in services.settings.current.hidden.disabled_extensions if name != body.name]
        services.settings.update({"disabled_extensions": off if body.enabled else [*off, body.name]})
        word = "loaded" if body.enabled else "left out"
        return ExtensionDone(name=body.name, message=f"{body.name} will be {word} at the next start.")

    @routes.post("/install", **documented(errors={403: CLOSED, 409: ASKS}))
    def install(body: InstallBody) -> ExtensionDone:
        """Put an extension into the folder; nothing of it runs before the next start. Without `agreed` the answer is
        the question (409)."""
        place = store.install(body.source, body.agreed, body.name, body.branch)
        return ExtensionDone(name=place.name, message=f"{place.name} is installed. {AGAIN}")

    @routes.post("/update", **documented(errors={**NO_SUCH, 403: CLOSED}))
    def update(body: ExtensionName) -> ExtensionDone:
        """Fetch an extension again from where it came; the state before is kept."""
        version = store.update(body.name)
        return ExtensionDone(name=body.name, message=f"{body.name} is updated ({version or 'no version'}). {AGAIN}")

    @routes.post("/restore", **documented(errors={404: "Unknown earlier state of an extension 'mine'.", 403: CLOSED}))
    def restore(body: ExtensionName) -> ExtensionDone:
        """Put back what the last update or removal took away."""
        store.restore(body.name)
        return ExtensionDone(name=body.name, message=f"{body.name} is as it was before. {AGAIN}")

    @routes.post("/remove", **documented(errors={**NO_SUCH, 403: CLOSED, 409: "Remove mine? Its settings stay."}))
    def remove(body: AgreedName) -> ExtensionDone:
        """Take an extension away. Without `agreed` the answer is the question (409)."""
        store.remove(body.name, body.agreed)
        return ExtensionDone(name=body.name, message=f"{body.name} is removed; it can be taken back.")

    @routes.post("/packages", **documented(errors={**NO_SUCH, 403: CLOSED, 409: "Install opencv-python?"}))
    def packages(body: PackagesBody) -> ExtensionDone:
        """Install the packages that an extension wants, under the program's own versions, and run its install.py; with
        an empty name the optional set. Without `agreed` the answer is the question (409)."""
        store.check_open()
        plan = plan_for(store.place_of(body.name)) if body.name else PackagePlan(tuple(missing_packages()))
        what = ", ".join((*plan.missing, *(["its install.py"] if plan.installer else [])))
        if plan.is_empty:
            return ExtensionDone(name=body.name, message="Nothing has to be installed.")
        if not body.agreed:
            script = f" install.py:\n{plan.installer}" if plan.installer else ""
            raise NotAgreed(f"Install {what} into the program's environment, from the package server?{script}")

        def work() -> str:
            said = install_packages(plan.missing, body.name)
            return run_installer(store.place_of(body.name)) if plan.installer else said

        try:
            install_checked(work, services.paths.cache_dir / RECORD)
        except NotInstalledHere as error:
            raise InvalidValueError(str(error)) from error
        return ExtensionDone(name=body.name, message=f"Installed: {what}. {AGAIN}")

    @routes.post("/packages/undo", **documented(errors={403: CLOSED, 422: "No installation of packages is known."}))
    def undo_packages() -> ExtensionDone:
        """Take back what the last installation of packages changed in the program's environment."""
        store.check_open()
        try:
            undo_last(services.paths.cache_dir / RECORD)
        except NotInstalledHere as error:
            raise InvalidValueError(str(error)) from error
        return ExtensionDone(name="", message=f"The packages are as they were before. {AGAIN}")

    return routes


def _not_loaded(services: Services, store: ExtensionStore) -> list[Extension]:
    """Folders that came after the start."""
    places = sorted(store.folder.iterdir()) if store.folder.is_dir() else []
    new = [place for place in places if place.is_dir() and not place.name.startswith((".", "__"))]
    known = services.scripts.extensions
    return [Extension(place.name, place, is_enabled=False) for place in new if place.name not in known]


def _item(
    services: Services,
    store: ExtensionStore,
    extension: Extension,
    pins: Mapping[str, str],
    more: tuple[Fault, ...],
    image_s: float,
) -> InstalledExtension:
    """`more`: what failed in a worker; `image_s`: what its hooks took there per image."""
    origin = origin_of(extension.folder)
    is_there = extension.folder.is_dir() and not extension.is_built_in
    plan = plan_for(extension.folder, pins) if is_there else PackagePlan()
    faults = dict.fromkeys((*extension.faults, *more))
    return InstalledExtension(
        name=extension.name,
        about=extension.about.get("about", ""),
        folder=str(extension.folder),
        is_built_in=extension.is_built_in,
        is_enabled=extension.is_enabled,
        will_be_enabled=extension.name not in services.settings.current.hidden.disabled_extensions,
        remote=origin.address,
        version=origin.version,
        files=extension.files,
        hooks=hooks_of(services.scripts, extension),
        faults=[FaultItem(where=one.where, reason=one.reason, missing=one.missing) for one in faults],
        notices=extension.notices,
        size_bytes=size_bytes(extension.folder) if extension.folder.is_dir() else 0,
        start_ms=round(extension.start_s * 1000, 1),
        image_ms=round(image_s * 1000, 2),
        replaced_by=extension.replaced_by,
        packages=list(plan.missing),
        refused_packages=dict(plan.refused or {}),
        has_installer=bool(plan.installer),
        can_restore=extension.name in store.restorable,
    )


def hooks_of(library: ScriptLibrary, extension: Extension) -> list[str]:
    """List what it overrides and registers: the hooks of its scripts, the callbacks, its operations and page
    scripts."""
    own = {**vars(Script), **vars(ScriptHooks)}
    names = [name for name, value in own.items() if callable(value) and not name.startswith("_")]
    scripts = [one for one in library.scripts if one.acting is not None and one.acting.owner is extension]
    known = [name for name in names if any(getattr(type(one), name) is not getattr(Script, name) for one in scripts)]
    known = [name for name in known if name not in ("title", "show")]
    callbacks = [
        f"on_{one.moment.value}" for one in library.callbacks.all if one.acting and one.acting.owner is extension
    ]
    operations = [one for one in library.operations if one.filename.startswith(str(extension.folder))]
    files = [one for one in library.page_scripts if one.is_relative_to(extension.folder)]
    more = (["operations"] if operations else []) + (["javascript"] if files else [])
    return list(dict.fromkeys((*known, *callbacks, *more)))
