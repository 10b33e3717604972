"""S3Proxy, an S3 of its own kind: it checks signatures, and can be slow and eventually consistent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from obstore.store import S3Store

from tests.interop.jars import QUICK_JVM, fetched_jar, java_command
from tests.object_stores.object_server import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY
from tests.object_stores.served import put_with_obstore

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_ARTIFACT = "org.gaul:s3proxy:4.1.0:jar:jar-with-dependencies"
SLOW = {"s3proxy.latency-blobstore.*.latency": 20}
# Half of what is written is seen after a second.
EVENTUAL = {
    "s3proxy.eventual-consistency": "true",
    "s3proxy.eventual-consistency.delay": 1,
    "s3proxy.eventual-consistency.probability": 0.5,
}


@dataclass(frozen=True, slots=True)
class S3Proxy:
    """S3Proxy over a directory.

    Attributes:
        settings: Further properties.
    """

    settings: Mapping[str, object] = field(default_factory=dict)
    scheme: ClassVar[str] = "s3"
    put = staticmethod(put_with_obstore)

    def command(self, directory: Path, bucket: str, port: int) -> list[str]:
        properties = {
            "s3proxy.endpoint": f"http://127.0.0.1:{port}",
            "s3proxy.authorization": "aws-v4",
            "s3proxy.identity": ACCESS_KEY_ID,
            "s3proxy.credential": SECRET_ACCESS_KEY,
            **self.settings,
        }
        # Objects are in the other directory until they are seen, if that takes a time.
        for prefix, kind in (("", "read"), ("alt.", "written")):
            (directory / kind / bucket).mkdir(parents=True)
            properties[f"{prefix}jclouds.provider"] = "filesystem-nio2"
            properties[f"{prefix}jclouds.filesystem.basedir"] = directory / kind
            properties[f"{prefix}jclouds.identity"] = properties[f"{prefix}jclouds.credential"] = "unused"
        path = directory / "s3proxy.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        java = [java_command(), "-Xmx256m", *QUICK_JVM, "-jar", str(fetched_jar(_ARTIFACT))]
        return [*java, "--properties", str(path)]

    def create_bucket(self, bucket: str, url: str) -> None:
        """Do nothing: `command` has made its directories."""

    def storage_options(self, url: str) -> dict[str, str]:
        return {
            "s3.endpoint": url,
            "s3.region": REGION,
            "s3.access-key-id": ACCESS_KEY_ID,
            "s3.secret-access-key": SECRET_ACCESS_KEY,
        }

    def store(self, bucket: str, url: str) -> S3Store:
        return S3Store(
            bucket,
            endpoint=url,
            region=REGION,
            access_key_id=ACCESS_KEY_ID,
            secret_access_key=SECRET_ACCESS_KEY,
            client_options={"allow_http": True},
        )
