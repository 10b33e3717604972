"""Read a backup in a bucket: rows, what a read would fetch, and one partition on a disk beside another in the bucket.

    python examples/object_store.py

It starts a store of its own, moto's S3 on 127.0.0.1 (pip install 'moto[s3,server]'). With a real one, leave
`storage_options` out, so that credentials come from the environment or from the role of the machine.
"""

import logging
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

from storage_core import explain, read_table

DATA = Path(__file__).parent / "data"


def options_of(server: ThreadedMotoServer) -> dict[str, str]:
    """Return how to reach a server, which takes any credentials."""
    host, port = server.get_host_and_port()
    return {
        "s3.endpoint": f"http://{host}:{port}",
        "s3.region": "us-east-1",
        "s3.access-key-id": "any",
        "s3.secret-access-key": "any",
    }


def upload(options: dict[str, str]) -> str:
    """Copy the example data to a bucket, as `aws s3 sync` does; return its URI."""
    s3 = boto3.client(
        "s3",
        endpoint_url=options["s3.endpoint"],
        region_name=options["s3.region"],
        aws_access_key_id=options["s3.access-key-id"],
        aws_secret_access_key=options["s3.secret-access-key"],
    )
    s3.create_bucket(Bucket="backups")
    for path in sorted(DATA.rglob("*")):
        if path.is_file():
            s3.upload_file(str(path), "backups", f"monday/{path.relative_to(DATA)}")
    return "s3://backups/monday"


def main() -> None:
    """Upload, and read."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        options = options_of(server)
        uri = upload(options)

        orders = read_table(uri, subscribe="orders", columns=["offset"], storage_options=options)
        print(f"{orders.num_rows:,} orders in {uri}")

        plan = explain(uri, subscribe="orders", starting_timestamp="2026-03-08T00:00:00Z", **options)
        print(f"of Sunday: {plan.totals.planned_bytes:,} of {plan.totals.total_bytes:,} bytes would be read")

        both = read_table(f"{uri}/orders-0", DATA / "orders-1", storage_options=options)
        print(f"{both.num_rows:,} orders in a partition of the bucket and one on the disk")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
