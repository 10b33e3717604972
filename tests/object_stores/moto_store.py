"""moto's S3 as a store: its application is called in this process, its objects are put straight into its memory."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING
from urllib.parse import unquote

from moto.backends import get_backend
from moto.core import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

from tests.object_stores.http_server import Answer, Request
from tests.object_stores.listing import Entry
from tests.object_stores.object_server import ACCESS_KEY_ID, REGION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from moto.s3.models import S3Backend

# Of this connection, which `HttpServer` says itself.
_OWN = frozenset({"connection", "date", "server", "transfer-encoding"})


class MotoStore:
    """S3 of moto."""

    def __init__(self) -> None:
        self._application = DomainDispatcherApplication(create_backend_app)
        self._backend: S3Backend = get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"]

    def create_bucket(self, bucket: str) -> None:
        self._backend.create_bucket(bucket, REGION)

    def delete_bucket(self, bucket: str) -> None:
        for key in list(self._backend.buckets[bucket].keys):
            self.delete(bucket, key)
        self._backend.delete_bucket(bucket)

    def put(self, bucket: str, key: str, content: bytes) -> None:
        self._backend.put_object(bucket, key, content, disable_notification=True)

    def delete(self, bucket: str, key: str) -> None:
        keys = self._backend.buckets[bucket].keys
        if key in keys:
            keys.pop(key)

    def entries(self, bucket: str) -> Sequence[Entry]:
        found = self._backend.list_objects(self._backend.buckets[bucket], None, None, None, None)[0]
        return [Entry(key.name, key.size, key.etag, key.last_modified.timestamp()) for key in found]

    def answer(self, request: Request) -> Answer:
        started: list[Any] = []
        body = self._application(_environment(request), lambda *arguments: started.extend(arguments))
        try:
            content = b"".join(body)
        finally:
            if hasattr(body, "close"):
                body.close()
        status, headers = started[:2]
        sent = {name.lower(): value for name, value in headers if name.lower() not in _OWN}
        return Answer(int(status.split()[0]), sent, content)


def _environment(request: Request) -> dict[str, Any]:
    """Return the request as WSGI wants it (PEP 3333)."""
    path, _, query = request.target.partition("?")
    environment = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote(path, "latin-1"),
        "RAW_URI": request.target,
        "QUERY_STRING": query,
        # `Bucket` has looked at credentials: moto would ask for an access list without them.
        "HTTP_AUTHORIZATION": f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY_ID}/20260101/{REGION}/s3/aws4_request",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": request.headers.get("host", "").partition(":")[2] or "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_LENGTH": str(len(request.body)),
        "CONTENT_TYPE": request.headers.get("content-type", ""),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(request.body),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in request.headers.items():
        environment[f"HTTP_{name.upper().replace('-', '_')}"] = value
    return environment
