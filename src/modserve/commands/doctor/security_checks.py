"""Checks of ``modserve doctor --security``: the access of strangers to a server with these settings.

Open access is a problem if other machines reach it, and a warning if only this one does.
"""

import ipaddress
import math
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from modserve.access.key_file import AccessFile
from modserve.access.watched_file import WatchedFile
from modserve.core.errors import ModserveError
from modserve.core.runtime import unix_socket
from modserve.core.secret_names import KEY_VARIABLE
from modserve.settings import Settings
from modserve.settings.listen_addresses import ListenAddress, admin_address_of, listen_addresses, metrics_address_of

from ..terminal import plural
from .checks import OK, PROBLEM, WARNING, Check

CONTROL_CATEGORIES = ("model-repository", "shared-memory", "trace", "logging")
"""Categories of calls that affect all clients."""
KEYS_ADVICE = "'modserve keys add NAME', then --auth-file=keys.yaml"
TLS_ADVICE = (
    "--{0}-use-ssl=true with --{0}-server-cert and --{0}-server-key; or a proxy with TLS, and --{0}-address of its side"
)
CONTROL_ADVICE = "keys, or --http-restricted-api and --grpc-restricted-protocol for {}"
ADMIN_ADVICE = "--admin-address=127.0.0.1:8003, or unix:PATH"
_LISTED = 5
_MOST_FILES = 10_000


class Place(NamedTuple):
    """Settings, and values that the checks share."""

    settings: Settings
    listeners: Sequence[ListenAddress]
    file: AccessFile | None
    """None without a file that can be read."""

    @property
    def level(self) -> str:
        """The level of a finding that concerns all ports."""
        return level_at(each.address for each in self.listeners)

    @property
    def has_keys(self) -> bool:
        return bool(self.settings.auth_file) or self.settings.api_key is not None


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the address, which may be that of a Unix socket."""
    if unix_socket.path_of(host):
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def level_at(hosts: Iterable[str]) -> str:
    """Return the level of a finding about something open at these addresses."""
    return WARNING if all(map(is_loopback, hosts)) else PROBLEM


def join_names(names: Iterable[str]) -> str:
    """Join the first few names."""
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def all_checks(settings: Settings) -> Iterator[Check]:
    """Yield every check, in the order of the report."""
    file, failure = None, ""
    if settings.auth_file:
        try:
            file = WatchedFile(Path(settings.auth_file)).content
        except ModserveError as error:
            failure = error.message
    place = Place(settings, listen_addresses(settings), file)
    yield from _check_addresses(place)
    yield from _check_keys(place, failure)
    for check in (
        _check_key_file,
        _check_endless_keys,
        _check_issuers,
        _check_tls,
        _check_admin,
        _check_restrictions,
        _check_model_control,
    ):
        yield from check(place)
    for check in (
        _check_shared_memory,
        _check_health,
        _check_metrics,
        _check_records,
        _check_code,
        _check_repositories,
        _check_browsers,
    ):
        yield from check(place)


def _check_addresses(place: Place) -> Iterator[Check]:
    remote = [each for each in place.listeners if not is_loopback(each.address)]
    if not remote:
        yield Check(OK, "addresses", "only this machine reaches the ports")
        return
    text = f"other machines reach {', '.join(f'{each.name} {each}' for each in remote)}"
    safe = place.has_keys and all(each.secure for each in remote if each.name != "metrics")
    ports = {"admin": f":{remote[-1].port}"}
    options = ", ".join(f"--{each.name.lower()}-address=127.0.0.1{ports.get(each.name, '')}" for each in remote)
    yield (
        Check(OK, "addresses", text)
        if safe
        else Check(WARNING, "addresses", text, f"where only this machine calls: {options}")
    )


def _check_keys(place: Place, failure: str) -> Iterator[Check]:
    file, single = place.file, place.settings.api_key is not None
    if failure:
        yield Check(PROBLEM, "keys", failure, "the server does not start without it")
    elif not place.has_keys:
        text = "nobody needs one: whoever reaches a port may make every call that is not restricted"
        yield Check(place.level, "keys", text, KEYS_ADVICE)
    elif file is None:
        text = f"{KEY_VARIABLE} is the only one, and may do everything"
        yield Check(WARNING, "keys", text, f"a key with its own scopes for each caller: {KEYS_ADVICE}")
    else:
        names = {key.identity.name for key in file.keys.values() if not key.revoked}
        parts = [plural(len(names), "key")]
        parts += [plural(len(file.issuers), "issuer") + " of tokens"] if file.issuers else []
        parts += [plural(len(file.certificates), "rule") + " for certificates"] if file.certificates else []
        parts += [f"and {KEY_VARIABLE}, which may do everything"] if single else []
        empty = file.is_empty and not single
        yield Check(WARNING if empty else OK, "keys", ", ".join(parts), "nobody has access yet" if empty else "")


def _check_key_file(place: Place) -> Iterator[Check]:
    if not place.settings.auth_file:
        return
    path = Path(place.settings.auth_file)
    for each in (path, path.absolute().parent):
        if writers := _writers(each):
            text = f"{writers} may write {each}, and give themselves access"
            yield Check(PROBLEM, "key file", text, f"chmod go-w '{each}'")
    if others := _readers(path):
        text = f"{others} may read {path}: it has hashes of secrets, and names of callers"
        yield Check(WARNING, "key file", text, f"chmod go= '{path}'")


def _check_endless_keys(place: Place) -> Iterator[Check]:
    keys = () if place.file is None else place.file.keys.values()
    names = [each.identity.name for each in keys if not each.revoked and each.identity.expires == math.inf]
    if place.settings.api_key is not None:
        names.append(KEY_VARIABLE)
    if names:
        advice = "'modserve keys add NAME --expires 90d'; 'modserve keys rotate NAME' makes a new secret"
        yield Check(WARNING, "expiry", f"no end: {join_names(names)}", advice)


def _check_issuers(place: Place) -> Iterator[Check]:
    for each in () if place.file is None else place.file.issuers:
        if each.jwks.lower().startswith("http://"):
            text = f"the public keys of {each.issuer} come from {each.jwks}, which others on the way can change"
            yield Check(PROBLEM, "tokens", text, "an https:// address, or a file")


def _check_tls(place: Place) -> Iterator[Check]:
    for each, front_end in (("HTTP", place.settings.http), ("gRPC", place.settings.grpc)):
        if not front_end.allow:
            continue
        name = f"{each} TLS"
        tls = front_end.tls
        if tls is None:
            if is_loopback(front_end.address):
                yield Check(OK, name, "off, which is enough inside this machine")
            else:
                text = "off: others on the way read and change requests, responses and keys"
                yield Check(PROBLEM, name, text, TLS_ADVICE.format(each.lower()))
        elif others := _readers(tls.key):
            text = f"on, and {others} may read the private key {tls.key}"
            yield Check(PROBLEM, name, text, f"chmod go= '{tls.key}'")
        else:
            yield Check(OK, name, "on, for clients with a certificate" if tls.mutual else "on")


def _check_admin(place: Place) -> Iterator[Check]:
    admin = admin_address_of(place.settings)
    if admin is None:
        return
    has = "loads, settings, metrics and the console"
    if is_loopback(admin.address):
        yield Check(OK, "admin port", f"only this machine reaches {admin}, which alone has {has}")
    elif not place.has_keys:
        text = f"other machines reach {admin}: {has} are open to all of them"
        yield Check(PROBLEM, "admin port", text, f"{ADMIN_ADVICE}; or {KEYS_ADVICE}")
    elif not admin.secure:
        text = f"other machines reach {admin}, over which keys and settings go in the clear"
        yield Check(PROBLEM, "admin port", text, f"{ADMIN_ADVICE}; or {TLS_ADVICE.format('http')}")
    else:
        yield Check(OK, "admin port", f"{admin}, for callers with keys")


def _check_restrictions(place: Place) -> Iterator[Check]:
    if place.has_keys:
        yield Check(OK, "settings", "logs, traces and shared memory need a key for 'admin' or 'control'")
        return
    admin = bool(place.settings.admin_address)
    of_clients = ["shared-memory"] if place.settings.allow_client_shm else []
    categories = of_clients if admin else CONTROL_CATEGORIES
    for each, front_end in (("HTTP", place.settings.http), ("gRPC", place.settings.grpc)):
        left = [category for category in categories if category not in front_end.restrictions]
        if not front_end.allow:
            continue
        if left:
            text = f"{each} calls that anybody may make for everybody: {', '.join(left)}"
            level = level_at([front_end.address])
            advice = CONTROL_ADVICE.format(",".join(left))
            yield Check(level, "settings", text, advice if admin else f"{ADMIN_ADVICE}; {advice}")
        elif admin and not categories:
            yield Check(OK, "settings", f"{each} has no calls that change something for everybody")
        else:
            yield Check(OK, "settings", f"{each} calls that change something need a header")


def _check_model_control(place: Place) -> Iterator[Check]:
    settings, mode = place.settings, place.settings.model_control_mode
    front_ends = [each for each in (settings.http, settings.grpc) if each.allow]
    if mode == "none":
        yield Check(OK, "model control", "none: no call loads or unloads models")
    elif mode == "poll":
        yield Check(OK, "model control", "poll: whoever may write to the repositories changes models")
    elif place.has_keys or all("model-repository" in each.restrictions for each in front_ends):
        needed = "a key for 'control'" if place.has_keys else "a header"
        yield Check(OK, "model control", f"explicit: loads and unloads need {needed}")
    elif settings.admin_address:
        yield Check(OK, "model control", "explicit: whoever reaches the admin port loads and unloads models")
    else:
        text = "explicit: anybody may unload models, and load ones with a configuration and files of their own"
        advice = f"{ADMIN_ADVICE}; {CONTROL_ADVICE.format('model-repository')}; or --model-control-mode=none"
        yield Check(place.level, "model control", text, advice)


def _check_shared_memory(place: Place) -> Iterator[Check]:
    if not place.settings.allow_client_shm:
        yield Check(OK, "shared memory", "clients may not use it")
        return
    text = "clients may have the server read and write any region of /dev/shm that it can open"
    advice = "--allow-client-shm=false, unless trusted clients on this machine pass tensors in it"
    yield Check(WARNING if place.has_keys else place.level, "shared memory", text, advice)


def _check_health(place: Place) -> Iterator[Check]:
    open_ = not place.has_keys or "health" in place.settings.auth_open
    text = "open, for probes; it names no model to callers without a key" if open_ else "needs a key"
    if not place.has_keys:
        text = "open, also that of each model"
    yield Check(OK, "health", text)


def _check_metrics(place: Place) -> Iterator[Check]:
    settings = place.settings
    if not settings.allow_metrics:
        yield Check(OK, "metrics", "switched off")
        return
    alone = metrics_address_of(settings)
    if alone is None:
        yield Check(OK, "metrics", "at the admin port")
        return
    local = is_loopback(alone.address)
    advice = "--metrics-address of an inner network, or 127.0.0.1: this port has no TLS"
    if not place.has_keys or "metrics" in settings.auth_open:
        text = "open: names of models, and how much each is used"
        http = next((each for each in place.listeners if each.name == "HTTP"), alone)
        if admin_address_of(settings) is None and not is_loopback(http.address):
            text, advice = (
                f"{text}; also at the HTTP port",
                f"{advice}; {ADMIN_ADVICE}: the HTTP port has no metrics then",
            )
            local = False
        yield Check(OK, "metrics", "open to this machine") if local else Check(PROBLEM, "metrics", text, advice)
    else:
        text = "need a key for all models"
        yield (
            Check(OK, "metrics", text)
            if local
            else Check(WARNING, "metrics", f"{text}, which crosses the network in the clear", advice)
        )


def _check_records(place: Place) -> Iterator[Check]:
    record = place.settings.record
    if not record.folder:
        yield Check(OK, "recording", "requests and responses are not recorded")
        return
    path = Path(record.folder)
    if others := _writers(path) or _readers(path):
        text = f"{others} may look into {path}, or change it: recorded requests are there"
        yield Check(PROBLEM, "recording", text, f"chmod go= '{path}'")
    hidden = (
        f"but for {join_names(f'{model}:{tensor}' for model, tensor in record.redacted)}" if record.redacted else ""
    )
    text = f"what clients send and get is written to {path}{f', {hidden}' if hidden else ', with all tensors'}"
    yield Check(
        WARNING, "recording", text, "--record redact=MODEL:TENSOR leaves tensors out; without --record, nothing is"
    )


def _check_code(place: Place) -> Iterator[Check]:
    settings = place.settings
    if settings.deny_code:
        yield Check(OK, "code", "models that run code from the repository are refused")
        return
    pickles = settings.backend_config.get("sklearn", {}).get("allow-pickle", "0").lower() not in ("0", "false", "")
    if pickles:
        text = "pickles are loaded, which run whatever their author put into them"
        yield Check(WARNING, "code", text, "models saved by skops, without --backend-config=sklearn,allow-pickle")
    else:
        yield Check(OK, "code", "models may run code from the repository; --deny-code refuses them")


def _check_repositories(place: Place) -> Iterator[Check]:
    settings = place.settings
    for path in (*settings.repositories, *(path for _, path in settings.model_file)):
        if not isinstance(path, Path) or not path.exists():
            continue
        loose = [(each, writers) for each in _files(path) if (writers := _writers(each))]
        if not loose:
            yield Check(OK, "repository", f"only its owner may write {path}")
            continue
        worst = PROBLEM if any(writers == _EVERYBODY for _, writers in loose) else WARNING
        writers = _EVERYBODY if worst == PROBLEM else _GROUP
        names = join_names(str(each) for each, who in loose if who == writers)
        yield Check(worst, "repository", f"{writers} may write {names}", f"chmod -R go-w '{path}'")
    if settings.allow_outside_symlinks:
        text = "links of models may lead to any file that the server can read"
        yield Check(WARNING, "links", text, "without --allow-outside-symlinks they stay in the repository")


def _check_browsers(place: Place) -> Iterator[Check]:
    http = place.settings.http
    if "*" in http.cors_allow_origin and not place.has_keys:
        text = "any page in a browser that reaches the server may make every call"
        yield Check(PROBLEM, "browsers", text, "--http-cors-allow-origin=https://your.page, and keys")
    if "*" in http.allow_host and not place.has_keys and http.tls is None:
        text = "pages under any name may call the server (DNS rebinding)"
        yield Check(PROBLEM, "browsers", text, "--http-allow-host=NAME for the names that are the server's")


# Files

_EVERYBODY, _GROUP = "everybody", "its group"


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def _writers(path: Path) -> str:
    """Return who may write besides the owner; empty if no one may."""
    mode = _mode(path)
    return _EVERYBODY if mode & stat.S_IWOTH else _GROUP if mode & stat.S_IWGRP else ""


def _readers(path: Path) -> str:
    mode = _mode(path)
    return _EVERYBODY if mode & stat.S_IROTH else _GROUP if mode & stat.S_IRGRP else ""


def _files(path: Path) -> Iterator[Path]:
    """Yield the path and the entries below it, up to a number."""
    yield path
    count = 0
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            each = Path(folder, name)
            if not each.is_symlink():
                yield each
            count += 1
        if count >= _MOST_FILES:
            return
