"""Checksums as S3 has them, against published values."""

import base64

import pytest

from cloudspot_aws_sandbox.checksums import CHECKSUMS, is_right, unchunked

# Of "123456789": the check values of the catalogue of CRCs, and the RFCs' hashes.
KNOWN = {
    "crc32": "cbf43926",
    "crc32c": "e3069283",
    "crc64nvme": "ae8b14860a799888",
    "md5": "25f9e794323b453885f5181f1b624d0b",
    "sha1": "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
    "sha256": "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
}


@pytest.mark.parametrize("name", sorted(CHECKSUMS))
def test_a_checksum_has_its_published_value(name):
    assert CHECKSUMS[name](b"123456789").hex() == KNOWN[name]
    right = base64.b64encode(bytes.fromhex(KNOWN[name])).decode()
    assert is_right(name, right, b"123456789") is True
    assert is_right(name, right, b"12345678") is False
    assert is_right(name, "no base64!", b"") is None
    assert is_right(name, "AAA=", b"") is None


def test_a_chunked_body_gives_its_content_and_trailers():
    body = b"4;chunk-signature=0\r\nwiki\r\n5\r\npedia\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"
    assert unchunked(body) == (b"wikipedia", {"x-amz-checksum-crc32": "AAAAAA=="})
    for broken in (b"", b"zz\r\n", b"4\r\nwi"):
        with pytest.raises(ValueError):
            unchunked(broken)
