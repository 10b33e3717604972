"""Messages of format v0 and v1, and the rows that they hold; those of `LEGACY` were written by Kafka's own classes.

A row is (offset, timestamp in ms, key, value, headers).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GoldenSet:
    """Messages as they are in a file; ``crcs`` are those of the outer ones."""

    data: bytes
    crcs: tuple
    rows: tuple


_ROWS_V0 = ((0, -1, b"key1", b"value1", ()), (1, -1, b"key2", b"value2", ()))
_ROWS_V1 = ((0, 283843, b"key1", b"value1", ()), (1, 1234, b"key2", b"value2", ()))


def _golden(text, crcs, rows):
    return GoldenSet(bytes.fromhex(text), crcs, rows)


# The same two records in every format and codec; Kafka's own tests state the CRCs of those without
# codec and those with lz4.
LEGACY = {
    "v0 none": _golden(
        "00000000000000000000001875f0f41d0000000000046b6579310000000676616c756531000000000000000100000018"
        "751bc3a60000000000046b6579320000000676616c756532",
        (1978725405, 0x751BC3A6),
        _ROWS_V0,
    ),
    "v0 gzip": _golden(
        "0000000000000001000000486a1cc1b20001ffffffff0000003a1f8b08000000000000ff6360800389d20f5f64c12c96"
        "ecd44a4320cd569698539a6a08956704ab913ebc0caec608aec60800ee26f24848000000",
        (0x6A1CC1B2,),
        _ROWS_V0,
    ),
    "v0 snappy": _golden(
        "000000000000000100000060aceaee540002ffffffff0000005282534e415050590000000001000000010000003e4800"
        "001901101875f0f41d050f38046b6579310000000676616c75653105142c00000100000018751bc3a600010138046b65"
        "79320000000676616c756532",
        (0xACEAEE54,),
        _ROWS_V0,
    ),
    "v0 lz4": _golden(
        "00000000000000010000005603fd7f3a0003ffffffff0000004804224d1860401a3900000016000100511875f0f41d0f"
        "00e0046b6579310000000676616c75650a0000020011012400301bc3a60d00012400b0320000000676616c7565320000"
        "0000",
        (66944826,),
        _ROWS_V0,
    ),
    "v1 none": _golden(
        "0000000000000000000000200685b364010000000000000454c3000000046b6579310000000676616c75653100000000"
        "0000000100000020050930050100000000000000"
        "04d2000000046b6579320000000676616c756532",
        (109425508, 0x05093005),
        _ROWS_V1,
    ),
    "v1 gzip": _golden(
        "00000000000000010000005be763796a010100000000000454c3ffffffff000000451f8b08000000000000ff63608003"
        "05b6d6cd298c10364bc86110999d5a6908a4d9ca12734a530da1ea404a1458390d58a16a19582e41d51ac1d51a010027"
        "093d7458000000",
        (0xE763796A,),
        _ROWS_V1,
    ),
    "v1 snappy": _golden(
        "00000000000000010000006fd86eb5c3010200000000000454c3ffffffff0000005982534e4150505900000000010000"
        "000100000045580000190114200685b364010910540454c3000000046b6579310000000676616c756531000901012310"
        "2005093005010901010804d200092c28320000000676616c756532",
        (0xD86EB5C3,),
        _ROWS_V1,
    ),
    "v1 lz4": _golden(
        "00000000000000010000006c53e1bee7010300000000000454c3ffffffff0000005604224d1860408247000000160001"
        "0062200685b364011000f0050454c3000000046b6579310000000676616c75650a000002000023005020050930050900"
        "0002002304d22c00b0320000000676616c75653200000000",
        (1407303399,),
        _ROWS_V1,
    ),
    # Offsets 10 to 12 in a wrapper whose inner offsets are 0 to 2.
    "v1 relative": _golden(
        "000000000000000c0000005dd7a60a8201010000000000000003ffffffff000000471f8b08000000000000ff63608003"
        "8936b599d68c301e88c19808220c9144240e5e677e0757c30c124d021146501126909a3d4cf6b270352011c66410610c"
        "001bf201796c000000",
        (0xD7A60A82,),
        ((10, 1, b"a", b"1", ()), (11, 3, b"b", b"2", ()), (12, 2, b"c", b"3", ())),
    ),
    "v1 append time": _golden(
        "000000000000000a00000018ddf1afb80108000000000000000f00000001610000000131",
        (0xDDF1AFB8,),
        ((10, 15, b"a", b"1", ()),),
    ),
}

_ROWS_WITHOUT_TIMES = ((20, -1, b"a", b"1", ()), (22, -1, b"b", None, ()), (25, -1, None, b"3", ()))
_ROWS_WITH_TIMES = ((20, 7, b"a", b"1", ()), (22, 9, b"b", None, ()), (25, 8, None, b"3", ()))

# Wrappers around messages of the other format, as brokers of 0.10 left them (KAFKA-4298); made by hand, and read by
# Kafka's own classes in tests/interop. In v1 wrappers the inner offsets are 0, 2 and 5.
MISMATCHED = {
    "v1 gzip around v0": _golden(
        "000000000000001900000057c41696eb0101ffffffffffffffffffffffff000000411f8b08000000000002036360800381b0"
        "f30af1601663228830848a330131ffdc4969ed10b9a4ff4000956205495dd9c5f58a81012aca680c00def08c1f52000000",
        (0xC41696EB,),
        _ROWS_WITHOUT_TIMES,
    ),
    "v1 snappy around v0, log append time": _golden(
        "0000000000000019000000711cd3cab6010a0000000000001388ffffffff0000005b82534e41505059000000000100000001"
        "000000475200001901101056cf205f050f1801610000000131050c2c0000020000000f9d926687000101140162ffffffff01"
        "0a58000000050000000fd4ba0aea0000ffffffff0000000133",
        (0x1CD3CAB6,),
        _ROWS_WITHOUT_TIMES,
    ),
    "v1 lz4 around v0": _golden(
        "00000000000000190000006a47041c0d01030000000000001388ffffffff0000005404224d18604082450000001600010051"
        "1056cf205f0f0071016100000001310c00b00000020000000f9d9266870d0071000162ffffffff0b00300000051b00f000d4"
        "ba0aea0000ffffffff000000013300000000",
        (0x47041C0D,),
        _ROWS_WITHOUT_TIMES,
    ),
    "v0 gzip around v1": _golden(
        "00000000000000190000005ab985e3930001ffffffff0000004c1f8b080000000000020363600003112096c89b1c5cc1c800"
        "05ec40cc9808220ca12262402ccefe6aeb34b81a4e9074d27f20800a4882942c64d87414ae84032acb680c00c9484dae6a00"
        "0000",
        (0xB985E393,),
        _ROWS_WITH_TIMES,
    ),
    # As early clients did: the checksum of the frame's descriptor also covers its magic.
    "v0 lz4 around v1": _golden(
        "000000000000001900000070cfd08b090003ffffffff0000006204224d1860401a5300000012000100a214000000186e9353"
        "78011000800000070000000161050010310f00c5000000160000001707eab596240010091f005162ffffffff210030000019"
        "230045a100b2c52300a008ffffffff000000013300000000",
        (0xCFD08B09,),
        _ROWS_WITH_TIMES,
    ),
    "v1 gzip around both, log append time": _golden(
        "00000000000000190000005cc4fa8d7101090000000000001388ffffffff000000461f8b08000000000002036360800381b0"
        "f30af1601663228830848a3301b138fbabadd318612a3941d249ff81002ac00ac4fc577671bd6260808a321a03000e732741"
        "5a000000",
        (0xC4FA8D71,),
        ((20, -1, b"a", b"1", ()), (22, 5000, b"b", None, ()), (25, -1, None, b"3", ())),
    ),
}
