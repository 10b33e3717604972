"""The object stores of the tests: both answer as S3 does, count what they are asked for, and fail as they are told."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import obstore
import pytest
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError
from obstore.store import S3Store

from tests.object_stores import faults
from tests.object_stores.object_server import Rule

CONTENT = bytes(range(256)) * 40


@pytest.fixture(params=["bucket", "quick_bucket"])
def either(request):
    return request.getfixturevalue(request.param)


def client(bucket, retries=0, **options):
    words = {
        name.partition(".")[2].replace("-", "_"): value for name, value in bucket.storage_options.items()
    }
    return S3Store(
        bucket.name,
        **{**words, **options},
        client_options={"allow_http": True},
        retry_config={"max_retries": retries},
    )


def keys_of(store, **options):
    return [entry["path"] for page in obstore.list(store, **options) for entry in page]


def test_a_listing_has_every_object_in_order_in_pages_of_a_thousand(either):
    names = sorted(f"logs/t-{number}/{number:020}.log" for number in range(2_345))
    for name in names:
        either.put(name, b"x")
    either.put("logs-of-another/0", b"")

    assert keys_of(client(either), prefix="logs") == names
    assert either.counts() == {"LIST": 3}


def test_a_listing_tells_size_and_etag(either):
    either.put("a", CONTENT)
    store = client(either)

    (entry,) = obstore.list(store).collect()
    assert (entry["size"], entry["e_tag"]) == (len(CONTENT), obstore.head(store, "a")["e_tag"])
    (kept,) = either.entries()
    assert (kept.key, kept.size_bytes, kept.etag) == ("a", len(CONTENT), entry["e_tag"])


def test_a_delimiter_shows_folders(either):
    for name in ("a", "b/1", "b/2", "b/c/3", "d/4", "e"):
        either.put(name, b"x")
    store = client(either)

    top = obstore.list_with_delimiter(store)
    assert ([entry["path"] for entry in top["objects"]], top["common_prefixes"]) == (["a", "e"], ["b", "d"])
    below = obstore.list_with_delimiter(store, "b")
    assert ([entry["path"] for entry in below["objects"]], below["common_prefixes"]) == (
        ["b/1", "b/2"],
        ["b/c"],
    )


def test_a_listing_starts_where_it_is_asked_to(either):
    for name in ("a", "b", "c"):
        either.put(name, b"x")

    assert keys_of(client(either), offset="a") == ["b", "c"]


@pytest.mark.parametrize("name", ["ümlaut", "a b+c%20d&e", "t.-_~1", "<tag>", "2000-01-01T00:00:00"])
def test_any_name_is_a_key(either, name):
    either.put(f"folder/{name}", CONTENT)
    store = client(either)

    assert keys_of(store) == [f"folder/{name}"]
    assert bytes(obstore.get(store, f"folder/{name}").bytes()) == CONTENT
    assert [exchange.key for exchange in either.exchanges if exchange.kind == "GET"] == [f"folder/{name}"]


def test_ranges_are_answered_and_noted(either):
    either.put("a", CONTENT)
    store = client(either)

    assert bytes(obstore.get_range(store, "a", start=10, end=300)) == CONTENT[10:300]
    assert bytes(obstore.get_range(store, "a", start=300, end=len(CONTENT) + 5)) == CONTENT[300:]
    assert bytes(obstore.get(store, "a", options={"range": {"suffix": 7}}).bytes()) == CONTENT[-7:]
    assert bytes(obstore.get(store, "a", options={"range": {"offset": 10_000}}).bytes()) == CONTENT[10_000:]
    size = len(CONTENT)
    assert either.ranges("a") == [(10, 300), (300, size), (10_000, size), (size - 7, size)]
    assert either.sent_twice() == {"a": [(10_000, size), (size - 7, size)]}
    either.forget()
    assert either.counts() == {}
    assert either.sent_twice() == {}


def test_a_range_behind_the_end_is_an_error(either):
    either.put("a", CONTENT)

    with pytest.raises(BaseError, match="416"):
        obstore.get_range(client(either), "a", start=len(CONTENT), end=len(CONTENT) + 5)


def test_an_empty_object_is_an_object(either):
    either.put("a", b"")

    assert bytes(obstore.get(client(either), "a").bytes()) == b""
    assert either.ranges() == []


def test_a_request_that_insists_on_a_version_fails_once_it_is_replaced(either):
    either.put("a", CONTENT)
    store = client(either)
    etag = obstore.head(store, "a")["e_tag"]
    condition = {"if_match": etag, "range": (0, 5)}

    assert bytes(obstore.get(store, "a", options=condition).bytes()) == CONTENT[:5]
    assert either.exchanges[-1].condition == etag
    either.put("a", b"another")
    with pytest.raises(PreconditionError):
        obstore.get(store, "a", options=condition)
    either.delete("a")
    with pytest.raises(FileNotFoundError):
        obstore.get(store, "a", options=condition)


def test_a_tree_is_uploaded(either, tmp_path):
    (tmp_path / "t-0").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "t-0" / "0.log").write_bytes(CONTENT)
    (tmp_path / ".kafka").write_bytes(b"")

    assert either.put_tree(tmp_path, "some/logs") == f"s3://{either.name}/some/logs"
    assert keys_of(client(either)) == ["some/logs/.kafka", "some/logs/t-0/0.log"]


def test_files_are_served_where_they_are(small_server, quick_bucket, tmp_path):
    (tmp_path / "0.log").write_bytes(CONTENT)
    small_server.store.link_tree(quick_bucket.name, tmp_path)
    store = client(quick_bucket)

    (entry,) = obstore.list(store).collect()
    part = obstore.get(store, "0.log", options={"if_match": entry["e_tag"], "range": (10, 300)})
    assert bytes(part.bytes()) == CONTENT[10:300]


def test_other_credentials_are_refused(either):
    either.put("a", CONTENT)
    store = client(either, access_key_id="another")

    with pytest.raises(PermissionDeniedError):
        obstore.get(store, "a")
    with pytest.raises(FileNotFoundError):
        obstore.head(client(either), "b")
    either.is_public = True
    anonymous = client(either, skip_signature=True)
    assert bytes(obstore.get(anonymous, "a").bytes()) == CONTENT


def test_a_bucket_that_is_not_there_is_an_error(moto_server):
    bucket = moto_server.create_bucket()
    store = client(bucket)
    moto_server.delete_bucket(bucket.name)

    with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
        obstore.get(store, "a")
    with pytest.raises(BaseError, match="NoSuchBucket"):
        keys_of(store)


def test_many_threads_are_answered_at_the_same_time(either):
    for number in range(100):
        either.put(f"{number}", CONTENT[: number + 1])
    store = client(either)

    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(lambda number: len(obstore.get(store, f"{number}").bytes()), range(100)))
    assert found == list(range(1, 101))
    assert either.counts() == {"GET": 100}


LASTING = {
    "denied": (faults.denied(), PermissionDeniedError),
    "missing": (faults.missing(), FileNotFoundError),
    "no bucket": (faults.no_bucket(), FileNotFoundError),
    "changed": (faults.changed(), PreconditionError),
    "expired": (faults.expired(), BaseError),
    "elsewhere": (faults.elsewhere(), BaseError),
}
PASSING = {
    "throttled": faults.throttled(),
    "broken": faults.broken(),
    "closed": faults.closed(),
    "reset": faults.reset(),
    "cut": faults.cut(),
    "cut at once": faults.cut(0),
    "cut at the end": faults.cut(1000, is_reset=True),
    "slow": faults.slow(0.01),
}


@pytest.mark.parametrize("name", LASTING)
def test_what_lasts_is_an_error_for_a_client(either, name):
    either.put("a", CONTENT)
    fault, error = LASTING[name]
    either.rules.append(Rule(fault, kind="GET", times=None))

    with pytest.raises(error):
        obstore.get(client(either, retries=1), "a", options={"if_match": "x"} if name == "changed" else {})


@pytest.mark.parametrize("name", PASSING)
def test_a_client_that_tries_again_gets_over_what_passes(either, name):
    either.put("a", CONTENT)
    either.rules.append(Rule(PASSING[name]))

    assert bytes(obstore.get(client(either, retries=2), "a").bytes()) == CONTENT
    assert either.rules[0].hits == 1


def test_a_client_that_tries_once_notices(either):
    either.put("a", CONTENT)
    for name in set(PASSING) - {"slow"}:
        either.rules[:] = [Rule(PASSING[name], kind="GET", times=None)]
        with pytest.raises(BaseError):
            obstore.get(client(either), "a").bytes()


def test_a_fault_happens_where_its_rule_says(either):
    for name in ("a", "b"):
        either.put(name, CONTENT)
    either.rules.append(Rule(faults.denied(), kind="GET", key="b", skip=1, times=2))
    store = client(either)

    def outcome(name):
        try:
            return bytes(obstore.get(store, name).bytes()) == CONTENT
        except PermissionDeniedError:
            return None

    assert [outcome(name) for name in "ababbab"] == [True, True, True, None, None, True, True]
    assert obstore.head(store, "b")["size"] == len(CONTENT)


def test_a_seed_chooses_the_same_requests_in_any_order(either):
    for number in range(200):
        either.put(f"{number}", b"x")
    store = client(either)

    def failed(numbers):
        either.rules[:] = [Rule(faults.throttled(), seed=7, permille=200)]
        found = set()
        for number in numbers:
            try:
                obstore.get(store, f"{number}")
            except BaseError:
                found.add(number)
        return found

    first = failed(range(200))
    assert 20 < len(first) < 60
    assert failed(reversed(range(200))) == first


def test_something_happens_between_listing_and_reading(either):
    either.put("a", CONTENT)
    either.rules.append(Rule(faults.before(lambda: either.put("a", b"another")), kind="GET"))
    store = client(either)
    (entry,) = obstore.list(store).collect()

    with pytest.raises(PreconditionError):
        obstore.get(store, "a", options={"if_match": entry["e_tag"]})


def test_a_listing_lags(either):
    either.put("a", CONTENT)
    earlier = either.entries()
    either.rules.append(Rule(faults.listing_of(either.name, earlier), kind="LIST", times=2))
    either.put("b", CONTENT)
    store = client(either)

    assert [keys_of(store) for _ in range(3)] == [["a"], ["a"], ["a", "b"]]


def test_each_answer_takes_as_long_as_it_is_told(either):
    either.put("a", CONTENT)
    either.latency_s = 0.05
    before = time.monotonic()

    obstore.head(client(either), "a")
    assert time.monotonic() - before >= 0.05
