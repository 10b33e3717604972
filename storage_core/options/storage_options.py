"""How reads reach an object store: options with pyiceberg's names, and what obstore calls them.

Keys of obstore that begin with ``aws_``, ``azure_`` or ``google_`` are options as well. What is not given comes from the
environment, and then from the identity of the machine or workload, as obstore documents it.

Source: the FileIO properties of pyiceberg's configuration (``s3.*``, ``adls.*``, ``gcs.*``).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from storage_core.errors import OptionError
from storage_core.options.option import option_key

if TYPE_CHECKING:
    from collections.abc import Callable

_Kind: TypeAlias = Literal["text", "url", "boolean", "seconds", "count"]


class StorageOption(NamedTuple):
    """An option.

    Attributes:
        key: What obstore calls it; empty if it is no key of obstore's.
        is_client: Whether the key is one of obstore's HTTP client, and not of the store.
    """

    name: str
    key: str
    meaning: str
    kind: _Kind = "text"
    is_client: bool = False


STORAGE_OPTIONS: Final = (
    StorageOption("s3.endpoint", "endpoint", "the URL of a store that is not AWS", "url"),
    StorageOption("s3.region", "region", "the bucket's region; `us-east-1` if nothing says it"),
    StorageOption("s3.access-key-id", "access_key_id", "static credentials: the key"),
    StorageOption("s3.secret-access-key", "secret_access_key", "static credentials: the secret"),
    StorageOption("s3.session-token", "session_token", "static credentials: the token of a session"),
    StorageOption("s3.profile-name", "", "a profile of `~/.aws` (needs boto3)"),
    StorageOption("s3.role-arn", "", "a role to assume (needs boto3)"),
    StorageOption("s3.role-session-name", "", "the name of that role's session"),
    StorageOption("s3.anonymous", "skip_signature", "requests are not signed: a public bucket", "boolean"),
    StorageOption(
        "s3.force-virtual-addressing",
        "virtual_hosted_style_request",
        "the endpoint has the bucket in its host",
        "boolean",
    ),
    StorageOption("s3.proxy-uri", "proxy_url", "an HTTP proxy", "url", is_client=True),
    StorageOption(
        "s3.connect-timeout", "connect_timeout", "how long a connection may take, in seconds", "seconds", True
    ),
    StorageOption(
        "s3.request-timeout", "read_timeout", "how long an answer may pause, in seconds (30)", "seconds", True
    ),
    StorageOption("adls.account-name", "account_name", "the storage account"),
    StorageOption("adls.account-key", "account_key", "its key"),
    StorageOption("adls.sas-token", "sas_key", "a shared access signature"),
    StorageOption("adls.token", "token", "a bearer token"),
    StorageOption("adls.tenant-id", "tenant_id", "a service principal: the tenant"),
    StorageOption("adls.client-id", "client_id", "a service principal: the client"),
    StorageOption("adls.client-secret", "client_secret", "a service principal: its secret"),
    StorageOption(
        "adls.account-host", "endpoint", "the host of the account, if it is not Azure's public one"
    ),
    StorageOption(
        "adls.anonymous", "skip_signature", "requests are not signed: a public container", "boolean"
    ),
    StorageOption("gcs.oauth2.token", "bearer_token", "an access token"),
    StorageOption("gcs.service.host", "base_url", "the URL of a store that is not Google's", "url"),
    StorageOption("gcs.service-account", "service_account", "the path of a service account's file"),
    StorageOption("gcs.anonymous", "skip_signature", "requests are not signed: a public bucket", "boolean"),
    StorageOption("storage.max-retries", "", "how often a request is tried again (8)", "count"),
    StorageOption("storage.timeout", "", "how long a request is tried again, in seconds (120)", "seconds"),
)
MAPPING: Final = "storageOptions"
"""The read option that has them as a mapping."""
KEY_FILE: Final = "remoteStorageKeyFile"
"""The read option that decrypts tiers, which travels with them."""
OF_STORAGE: Final = (MAPPING, KEY_FILE)
_BY_NAME: Final = {option.name: option for option in STORAGE_OPTIONS}
_PREFIXES: Final = {"s3": ("s3.", "aws_"), "gs": ("gcs.", "google_")}
_AZURE_PREFIXES: Final = ("adls.", "azure_")
_URL: Final = re.compile(
    r"(?:https?://)?(?:[^\s/@]{1,1000}@)?(?:[\w.-]{1,1000}|\[[0-9a-fA-F:]{2,100}\])(?::\d{1,5})?(?:/[\w./~-]{0,1000})?"
)
_IN_HEADER: Final = re.compile("key|token|secret")
_NATIVE: Final = re.compile(r"(?:aws|azure|google)_([a-z0-9_]{1,100})")
# Options of Hadoop and names of environment variables, and the store that they are about.
_FOREIGN: Final = {
    r"(?:spark\.hadoop\.)?fs\.s3[an]?\.|AWS_": "s3.",
    r"(?:spark\.hadoop\.)?fs\.azure\.|AZURE_": "adls.",
    r"(?:spark\.hadoop\.)?fs\.gs\.|GOOGLE_|GCS_": "gcs.",
    r"spark\.hadoop\.|fs\.": "",
}
_CLIENT_KEYS: Final = frozenset({"allow_http", "allow_invalid_certificates", "user_agent", "timeout"}) | {
    option.key for option in STORAGE_OPTIONS if option.is_client
}
_LONGEST_SECONDS: Final = 86_400.0
_MOST_RETRIES: Final = 1000
_Number = TypeVar("_Number", int, float)


def is_storage_option(name: str) -> bool:
    """Return True if a name is that of a storage option, or looks like one."""
    return (
        name.startswith(("s3.", "adls.", "gcs.", "storage."))
        or _NATIVE.fullmatch(name) is not None
        or any(re.match(pattern, name) for pattern in _FOREIGN)
    )


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Names and values that reach an object store. Some are secrets, so a representation shows none.

    Attributes:
        values: By name.
        key_file: The PEM files that decrypt tiers, as `KEY_FILE` names them; empty without.
    """

    values: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    key_file: str = ""

    @classmethod
    def of(cls, options: Mapping[str, object]) -> StorageOptions:
        """Check options.

        Raises:
            OptionError: A name is unknown, or a value malformed. No message shows a value.
        """
        for name, value in options.items():
            if not isinstance(value, (str, int, float)):
                raise OptionError(
                    f"Expected text for the storage option {name}, found {type(value).__name__}."
                )
        # As Python and Spark write True.
        made = cls(tuple((name, _text(value)) for name, value in options.items()))
        for name, text in made.values:
            _converted(name, text)
        return made

    @property
    def max_retries(self) -> int:
        """Return how often a request is tried again."""
        return int(self._value("storage.max-retries", 8))

    @property
    def timeout_seconds(self) -> float:
        """Return for how long a request is tried again."""
        return float(self._value("storage.timeout", 120.0))

    def text(self, name: str) -> str | None:
        """Return the value of an option; None if it is not set."""
        return next((value for each, value in self.values if each == name), None)

    def _value(self, name: str, default: Any) -> Any:
        text = self.text(name)
        return default if text is None else _converted(name, text)

    def keys_for(self, scheme: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return obstore's keys and values for a kind of URI: those of the store, and those of its HTTP client."""
        store: dict[str, Any] = {}
        client: dict[str, Any] = {}
        prefixes = _PREFIXES.get(scheme, _AZURE_PREFIXES)
        for name, text in self.values:
            if name.startswith(prefixes):
                option = _BY_NAME.get(name)
                key = option.key if option else name.partition("_")[2]
                if key:
                    (client if key in _CLIENT_KEYS else store)[key] = _converted(name, text)
        return store, client


NO_STORAGE_OPTIONS: Final = StorageOptions()
"""What reads have that name nothing: the environment says how to reach an object store."""


def split_storage_options(options: Mapping[str, object]) -> tuple[StorageOptions, dict[str, object]]:
    """Separate storage options from others: those given by name, and those in the mapping ``storageOptions``.

    Returns:
        The storage options, and the other options.

    Raises:
        OptionError: A name is unknown, a value malformed, or one option is given with two values. No message shows a value.
    """
    given: list[tuple[str, object]] = []
    others: dict[str, object] = {}
    key_file = ""
    for name, value in options.items():
        if option_key(name) == option_key(MAPPING):
            given += _items_of_mapping(value)
        elif option_key(name) == option_key(KEY_FILE):
            key_file = _key_file(value)
        elif is_storage_option(name.lower()):
            given.append((name, value))
        else:
            others[name] = value
    values: dict[str, object] = {}
    for name, value in given:
        if value is not None and values.setdefault(name.lower(), value) != value:
            raise OptionError(f"The storage option {name} is given twice, with two values. Give it once.")
    if not (values or key_file):
        return NO_STORAGE_OPTIONS, others
    return replace(StorageOptions.of(values), key_file=key_file), others


def _key_file(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, (str, os.PathLike)):
        raise OptionError(
            f"{KEY_FILE} is a {type(value).__name__}. Use the path of a PEM file, or id=path pairs."
        )
    text: str = os.fspath(value)
    # Whoever takes a key for its file must not find it in a message.
    if "PRIVATE KEY" in text or not text.strip():
        raise OptionError(f"{KEY_FILE} holds no path. Use the path of a PEM file, or id=path pairs.")
    return text


def _items_of_mapping(value: object) -> list[tuple[str, object]]:
    if value is None:
        return []
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise OptionError(
            f"{MAPPING} is a {type(value).__name__}. Use a mapping of names to values in Python; elsewhere, give each storage "
            "option by its own name, such as s3.endpoint."
        )
    return list(value.items())


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _converted(name: str, text: str) -> Any:
    """Convert the text of an option to what obstore takes. No error shows the text."""
    option = _BY_NAME.get(name)
    if option is None and _NATIVE.fullmatch(name) is None:
        raise OptionError(_unknown(name))
    return _CONVERTERS[option.kind if option else "text"](name, text)


def _unknown(name: str) -> str:
    for pattern, prefix in _FOREIGN.items():
        if match := re.match(pattern, name):
            near = _nearest(prefix + name[match.end() :].replace("_", "-").lower(), list(_BY_NAME))
            return (
                f"{name!r} is no storage option: Hadoop's configuration does not reach a Python data source, and variables "
                f"of the environment are no options. Set {near or 's3.*, adls.* or gcs.*'} instead."
            )
    near = _nearest(name, list(_BY_NAME))
    return f"Unknown storage option {name!r}." + (f" Did you mean {near}?" if near else "")


def _nearest(name: str, names: list[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, names, 1)), None)


def _plain(name: str, text: str) -> str:
    # Of what goes into a header, obstore ends in a panic over other characters, as the line break at a file's end.
    is_plain = text.isascii() and text.isprintable()
    if _IN_HEADER.search(name) and not is_plain and not text.lstrip().startswith("{"):
        raise OptionError(
            f"Expected printable ASCII characters as the value of the storage option {name}, found a line break or others."
        )
    return text


def _url(name: str, text: str) -> str:
    # With another one, obstore ends in a panic.
    if _URL.fullmatch(text) is None:
        raise OptionError(
            f"Expected a URL such as http://host:9000 for the storage option {name}, found something else."
        )
    return text


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise OptionError(f"Expected true or false for the storage option {name}, found something else.")
    return text.lower() == "true"


def _number(most: _Number, what: str, name: str, text: str) -> _Number:
    try:
        number = type(most)(text)
    except ValueError:
        number = type(most)(-1)
    # The negation refuses NaN as well.
    if not 0 <= number <= most:
        raise OptionError(
            f"Expected {what} up to {most:g} for the storage option {name}, found something else."
        )
    return number


_CONVERTERS: Final[dict[_Kind, Callable[[str, str], Any]]] = {
    "text": _plain,
    "url": _url,
    "boolean": _boolean,
    "seconds": partial(_number, _LONGEST_SECONDS, "seconds"),
    "count": partial(_number, _MOST_RETRIES, "a whole number"),
}
