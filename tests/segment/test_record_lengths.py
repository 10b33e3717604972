"""What the lengths of records say where no header and no CRC does."""

from __future__ import annotations

import pytest

from storage_core.filesystem import FileSystem
from storage_core.segment.batch_candidates import RecordLengths
from storage_core.segment.damage import BatchProbe
from tests.record.encoding import Batch, Record
from tests.record.legacy_encoding import Message

HEADERS = ((b"h", b"1"), (b"", None))
RECORDS = (
    Record(0, 1_000, None, None),
    Record(3, 900, b"key", b"value" * 40, HEADERS),
    Record(4, 2**40, b"", b"", HEADERS[:1]),
)


@pytest.fixture
def lengths_of(tmp_path):
    opened = []

    def lengths_of(content):
        path = tmp_path / "some.log"
        path.write_bytes(content)
        log_file = FileSystem().open(str(path))
        opened.append(log_file)
        return RecordLengths(BatchProbe(log_file, len(content)))

    yield lengths_of
    for log_file in opened:
        log_file.close()


class TestContents:
    @pytest.mark.parametrize("magic", [0, 1])
    @pytest.mark.parametrize(("key", "value"), [(None, None), (b"", b""), (b"key", b"v" * 500), (None, b"v")])
    def test_a_message_ends_with_its_value(self, lengths_of, magic, key, value):
        message = Message(7, 5, key, value, magic).encode()
        found = lengths_of(b"-" * 9 + b"\xff" * 16 + message[16:] + b"-").contents(9, magic, 0)
        assert (found.end_bytes, found.records) == (9 + len(message), 1)

    @pytest.mark.parametrize("magic", [0, 1])
    def test_a_length_that_is_none(self, lengths_of, magic):
        assert lengths_of(b"\xfe" * 90).contents(0, magic, 0).records == 0
        assert lengths_of(b"").contents(0, magic, 0).records == 0

    def test_a_batch_ends_with_its_last_record(self, lengths_of):
        batch = Batch(RECORDS, 7).encode()
        found = lengths_of(b"-" * 9 + b"\xff" * 61 + batch[61:] + b"\0" * 20).contents(9, 2, 0)
        assert (found.end_bytes, found.records) == (9 + len(batch), 3)

    @pytest.mark.parametrize(
        ("number", "record"),
        [
            pytest.param(1, Record(0, 1, b"key", b"value"), id="an offset that does not ascend"),
            pytest.param(2, None, id="attributes"),
        ],
    )
    def test_it_stops_at_the_first_record_that_is_none(self, lengths_of, number, record):
        encoded = [each.encode(1_000) for each in RECORDS]
        encoded[number] = b"\x20\1" + bytes(20) if record is None else record.encode(0)
        found = lengths_of(bytes(61) + b"".join(encoded)).contents(0, 2, 0)
        assert (found.end_bytes, found.records) == (61 + sum(map(len, encoded[:number])), number)

    @pytest.mark.parametrize("left", [80, 100, 150])
    def test_what_is_torn_with_its_batch_need_not_be_whole(self, lengths_of, left):
        batch = Batch(RECORDS, 7).encode()
        second_end = 61 + sum(len(each.encode(1_000)) for each in RECORDS[:2])
        assert lengths_of(batch[:left]).contents(0, 2, len(batch))[2:] == (second_end, 2)
        assert lengths_of(batch[:left]).contents(0, 2, left).records == 1

    def test_what_there_is_for_proofs_ends_it(self, lengths_of):
        lengths = lengths_of(bytes(61) + b"".join(Record(each).encode(0) for each in range(100_000)))
        assert 0 < lengths.contents(0, 2, 0).records < 100_000


class TestRest:
    @pytest.mark.parametrize("headers", [(), HEADERS])
    @pytest.mark.parametrize("following", [0, 1, 2])
    def test_headers_and_records_after_a_value(self, lengths_of, headers, following):
        record = Record(1, 5, b"key", b"value", headers).encode(0)
        rest = record[record.index(b"value") + 5 :] + b"".join(
            each.encode(1_000) for each in RECORDS[:following]
        )
        assert lengths_of(b"value" + rest + b"\0" * 9).end_of_batch_after_value(5) == 5 + len(rest)

    @pytest.mark.parametrize("rest", [b"", b"\x01", b"\x02\x01", b"\x02\x02k\x03", b"\x02\x7f", b"\xff" * 9])
    def test_what_is_no_rest(self, lengths_of, rest):
        assert lengths_of(b"value" + rest).end_of_batch_after_value(5) == 0


class TestAround:
    def test_a_whole_record_around_some_bytes(self, lengths_of):
        encoded = [each.encode(1_000) for each in RECORDS]
        start, end = 9 + len(encoded[0]), 9 + len(encoded[0] + encoded[1])
        content = b"\xff" * 9 + b"".join(encoded)
        value = content.index(b"value")
        lengths = lengths_of(content)
        candidates = lengths.candidates(0, len(content))
        assert lengths.end_of_record_around(value, value + 200, candidates) == end
        assert lengths.end_of_record_around(value + 7, value + 8, candidates) == end
        # More than the value, or something else of the record.
        assert lengths.end_of_record_around(value, value + 201, candidates) == 0
        assert lengths.end_of_record_around(start + 1, start + 2, candidates) == 0

    def test_lengths_before_a_value(self, lengths_of):
        assert lengths_of(b"\x0a-----").value_ends_by_length_before(1) == [6]
        # As one byte, as two, or as three: an odd number is negative.
        assert lengths_of(b"\x81\x80\x01" + b"-" * 9).value_ends_by_length_before(3) == [3 + 64]
        assert lengths_of(b"-----").value_ends_by_length_before(0) == []

    def test_lengths_before_the_value_of_an_old_message(self, lengths_of):
        head = b"\xff" * 22
        assert lengths_of(head + b"\0\0\0\5-----").message_end_by_length_before(26, 0) == 31
        assert lengths_of(head + b"\0\0\0\5-----").message_end_by_length_before(26, 1) == 0
        assert lengths_of(head + b"\xff" * 9).message_end_by_length_before(26, 0) == 0
        assert lengths_of(b"---").message_end_by_length_before(3, 0) == 0

    def test_a_length_that_leads_to_a_place(self, lengths_of):
        lengths = lengths_of(b"--\0\0\0\5-----")
        assert lengths.has_length_leading_to(0, 6, 11)
        assert not lengths.has_length_leading_to(0, 5, 11)
        assert not lengths.has_length_leading_to(0, 6, 10)
        assert not lengths.has_length_leading_to(0, 2, 10)
