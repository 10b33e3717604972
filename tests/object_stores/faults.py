"""What an object store does to its clients, for `Rule` of `object_server`.

A fault takes a request and what answers it; it answers in its place, or changes the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.object_stores.http_server import Answer, Request
from tests.object_stores.listing import Entry, listing_xml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Fault = Callable[[Request, Callable[[], Answer]], Answer]


def refusal(status: int, code: str, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an error as S3 words it."""
    body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return Answer(status, {"content-type": "application/xml", **(headers or {})}, body.encode())


def refused(status: int, code: str, headers: Mapping[str, str] | None = None) -> Fault:
    """Answer with an error."""
    return lambda request, answer: refusal(status, code, headers)


def denied() -> Fault:
    """Answer that the caller may not do this."""
    return refused(403, "AccessDenied")


def missing() -> Fault:
    """Answer that there is no such object."""
    return refused(404, "NoSuchKey")


def no_bucket() -> Fault:
    """Answer that there is no such bucket."""
    return refused(404, "NoSuchBucket")


def changed() -> Fault:
    """Answer that the object is another version than the request insists on."""
    return refused(412, "PreconditionFailed")


def throttled() -> Fault:
    """Answer that there are too many requests."""
    return refused(503, "SlowDown")


def broken() -> Fault:
    """Answer that the server has failed."""
    return refused(500, "InternalError")


def expired() -> Fault:
    """Answer that the session token has expired."""
    return refused(400, "ExpiredToken")


def elsewhere(region: str = "eu-central-1") -> Fault:
    """Answer that the bucket is in another region."""
    return refused(301, "PermanentRedirect", {"x-amz-bucket-region": region})


def closed() -> Fault:
    """End the connection without an answer."""
    return lambda request, answer: replace(answer(), sent_bytes=-1)


def reset() -> Fault:
    """Reset the connection without an answer."""
    return lambda request, answer: replace(answer(), sent_bytes=-1, is_reset=True)


def cut(permille: int = 500, *, is_reset: bool = False) -> Fault:
    """End the connection within the body: after the first byte at the earliest, before the last one at the latest."""

    def fault(request: Request, answer: Callable[[], Answer]) -> Answer:
        whole = answer()
        sent = min(max(len(whole.body) * permille // 1000, 1), max(len(whole.body) - 1, 0))
        return replace(whole, sent_bytes=sent, is_reset=is_reset)

    return fault


def slow(pause_s: float) -> Fault:
    """Send the body in pieces, with pauses before each."""
    return lambda request, answer: replace(answer(), pause_s=pause_s)


def before(action: Callable[[], object]) -> Fault:
    """Do something before the answer: replace an object, or delete it."""

    def fault(request: Request, answer: Callable[[], Answer]) -> Answer:
        action()
        return answer()

    return fault


def listing_of(bucket: str, entries: Sequence[Entry]) -> Fault:
    """Answer a LIST with what there was earlier, or with a part of what there is."""
    return lambda request, answer: Answer(
        200, {"content-type": "application/xml"}, listing_xml(bucket, entries, request.query)
    )
