"""Documents of text: read from base64 and between two lines; what is no text in UTF-8 is refused."""

from __future__ import annotations

import base64

import pytest

from stratos.common.errors import BadRequest
from stratos.core.requests.documents import MAX_TITLE_CHARS, check_title, document_text, read_data_url


def url(content: bytes, media_type: str = "text/plain") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


@pytest.mark.parametrize("media_type", ["text/plain", "TEXT/Markdown;charset=UTF-8", "application/json"])
def test_texts_are_read(media_type: str) -> None:
    assert read_data_url(url("Grüezi\n".encode(), media_type), "f") == "Grüezi\n"
    assert read_data_url(url(b"\xef\xbb\xbfhi", media_type), "f") == "hi", "a mark of the byte order is no text"


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (url(b"%PDF", "application/pdf"), "unsupported_parameter"),
        (url(b"hi", "text/plain;charset=latin1"), "unsupported_parameter"),
        (url(b"\xff\xfe"), None),
        ("data:text/plain;base64,a", None),
        ("data:text/plain;base64,aG k=", None),
        ("data:text/plain,hi", None),
        ("https://example.com/a.txt", None),
        (None, None),
        (5, None),
    ],
)
def test_all_else_is_refused(value: object, code: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        read_data_url(value, "file_data")
    assert caught.value.param == "file_data"
    assert code is None or caught.value.code == code


def test_a_title_is_one_line() -> None:
    assert (check_title(None, "t"), check_title(" a.txt ", "t")) == ("", "a.txt")
    for title in (5, "a\nb", "a\u2028b", "x" * (MAX_TITLE_CHARS + 1)):
        with pytest.raises(BadRequest):
            check_title(title, "t")


def test_a_document_stands_between_lines_of_its_own() -> None:
    assert document_text("a.txt", "hi") == "\n[document: a.txt]\nhi\n[end of document]\n"
    assert document_text("", "hi") == "\n[document]\nhi\n[end of document]\n"
