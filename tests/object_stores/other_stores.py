"""Azurite and fake-gcs-server, which stand for Azure Blob Storage and Google Cloud Storage.

npm and Go fetch them on first use into the cache that `tests.interop.jars` uses, and keep them there.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import urllib.request
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlencode

from obstore.store import AzureStore, GCSStore

from tests.interop.jars import cached, run_fetching
from tests.object_stores.served import put_with_obstore

if TYPE_CHECKING:
    from collections.abc import Mapping

_ACCOUNT = "segmentlog"
_ACCOUNT_KEY = base64.b64encode(b"key of the tests").decode()
_AZURE_VERSION = "2021-12-02"
_FAKE_GCS_VERSION = "1.56.1"
_TOKEN = "token of the tests"
_HTTP = {"allow_http": True}


@dataclass(frozen=True, slots=True)
class Azurite:
    """Microsoft's emulator of Azure Blob Storage."""

    scheme: ClassVar[str] = "az"
    put = staticmethod(put_with_obstore)

    def command(self, directory: Path, bucket: str, port: int) -> list[str]:
        program = cached("azurite-3", _fetch_azurite) / "node_modules" / ".bin" / "azurite-blob"
        where = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(directory)]
        accounts = f"AZURITE_ACCOUNTS={_ACCOUNT}:{_ACCOUNT_KEY}"
        return ["env", accounts, str(program), *where, "--silent", "--skipApiVersionCheck"]

    def create_bucket(self, bucket: str, url: str) -> None:
        """Create a container, with the signature of a shared key that the REST API of Azure describes."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _AZURE_VERSION}
        signed = "".join(f"{name}:{value}\n" for name, value in headers.items())
        # Twice, because the account is in the path.
        text = "PUT" + "\n" * 12 + f"{signed}/{_ACCOUNT}/{_ACCOUNT}/{bucket}\nrestype:container"
        digest = hmac.digest(base64.b64decode(_ACCOUNT_KEY), text.encode(), hashlib.sha256)
        headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
        _send("PUT", f"{url}/{_ACCOUNT}/{bucket}?restype=container", headers)

    def storage_options(self, url: str) -> dict[str, str]:
        return {
            "adls.account-name": _ACCOUNT,
            "adls.account-key": _ACCOUNT_KEY,
            "adls.account-host": f"{url}/{_ACCOUNT}",
        }

    def store(self, bucket: str, url: str) -> AzureStore:
        return AzureStore(
            bucket,
            account_name=_ACCOUNT,
            account_key=_ACCOUNT_KEY,
            endpoint=f"{url}/{_ACCOUNT}",
            client_options=_HTTP,
        )


@dataclass(frozen=True, slots=True)
class FakeGcs:
    """An emulator of Google Cloud Storage, which looks at no credentials."""

    scheme: ClassVar[str] = "gs"

    def command(self, directory: Path, bucket: str, port: int) -> list[str]:
        program = cached(f"fake-gcs-server-{_FAKE_GCS_VERSION}", _fetch_fake_gcs) / "fake-gcs-server"
        address = f"127.0.0.1:{port}"
        where = ["-host", "127.0.0.1", "-port", str(port), "-public-host", address]
        return [str(program), "-scheme", "http", *where, "-filesystem-root", str(directory / "files")]

    def create_bucket(self, bucket: str, url: str) -> None:
        body = json.dumps({"name": bucket}).encode()
        _send("POST", f"{url}/storage/v1/b", {"Content-Type": "application/json"}, body)

    def put(self, store: GCSStore, url: str, key: str, content: bytes) -> None:
        """Upload an object through the JSON API: the server knows no other way."""
        query = urlencode({"uploadType": "media", "name": key})
        headers = {"Content-Type": "application/octet-stream"}
        _send("POST", f"{url}/upload/storage/v1/b/{store.config['bucket']}/o?{query}", headers, content)

    def storage_options(self, url: str) -> dict[str, str]:
        return {"gcs.service.host": url, "gcs.oauth2.token": _TOKEN}

    def store(self, bucket: str, url: str) -> GCSStore:
        return GCSStore(bucket, base_url=url, bearer_token=_TOKEN, client_options=_HTTP)


def _fetch_azurite(folder: Path) -> None:
    options = ["--no-audit", "--no-fund", "--omit=dev"]
    run_fetching(["npm", "install", "--prefix", str(folder), *options, "azurite@3"], "Azurite")


def _fetch_fake_gcs(folder: Path) -> None:
    module = f"github.com/fsouza/fake-gcs-server@v{_FAKE_GCS_VERSION}"
    run_fetching(["go", "install", module], "fake-gcs-server", GOBIN=str(folder))


def _send(method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> None:
    request = urllib.request.Request(url, data=body, headers=dict(headers), method=method)
    with urllib.request.urlopen(request, timeout=60):
        pass
