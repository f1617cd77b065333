"""One checksum for every document: no flipped bit passes, and documents without a checksum are read as they are."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.errors import Damaged
from oelm.files import CHECKSUM_FIELD, LINE_DIGITS, add_checksum, digest, has_checksum, parse_checked, strip_checksum

PLAIN = {"step": 38, "loss": 2.5e-05, "nested": {"a": [1, 2]}, "text": 'a "quoted" }, "b": "c"'}
DOCUMENTS = (
    add_checksum(json.dumps(PLAIN, indent=1) + "\n"),
    add_checksum(json.dumps(PLAIN, separators=(",", ":")), LINE_DIGITS),
)


@pytest.mark.parametrize("text", DOCUMENTS)
def test_every_flipped_bit_of_a_document_is_found(text: str) -> None:
    content = text.encode()
    assert parse_checked(content) == PLAIN
    for place in range(8 * len(content)):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(ValueError, match="."):
            parse_checked(bytes(changed))


@pytest.mark.parametrize("text", DOCUMENTS)
def test_every_cut_and_every_changed_digit_is_found(text: str) -> None:
    for end in range(len(text)):
        with pytest.raises(ValueError, match="."):
            parse_checked(text[:end].encode())
    for place, each in enumerate(text):
        if each.isdigit():
            with pytest.raises(ValueError, match="."):
                parse_checked(f"{text[:place]}{(int(each) + 1) % 10}{text[place + 1 :]}".encode())


@given(st.dictionaries(st.text(), st.floats(allow_nan=False) | st.text() | st.integers() | st.none(), min_size=1))
def test_a_document_comes_back_to_the_byte(plain: dict[str, object]) -> None:
    for indent in (None, 1):
        text = json.dumps(plain, indent=indent)
        checked = add_checksum(text)
        assert has_checksum(checked)
        assert strip_checksum(checked) == text
        assert {**json.loads(checked), CHECKSUM_FIELD: 0} == {**plain, CHECKSUM_FIELD: 0}, (
            "any other JSON reader sees one more field"
        )


def test_documents_of_earlier_versions_are_read_as_they_are() -> None:
    text = json.dumps(PLAIN)
    assert not has_checksum(text)
    assert parse_checked(text.encode()) == PLAIN
    of_fields = json.dumps({**PLAIN, CHECKSUM_FIELD: digest(PLAIN)})
    assert parse_checked(of_fields.encode()) == PLAIN
    with pytest.raises(Damaged):
        parse_checked(of_fields.replace("38", "68").encode())
