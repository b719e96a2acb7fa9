"""The bytes between plugin and agent: any input, in any pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.cni.wire import (
    MAX_CONFIG,
    MAX_HEADER,
    PROTOCOL,
    PluginReply,
    PluginRequest,
    RequestReader,
    WireError,
    encode,
)

names = st.text(st.characters(blacklist_characters="=\0", codec="utf-8"), max_size=20).map("CNI_".__add__)
values = st.text(st.characters(blacklist_characters="\0", codec="utf-8"), max_size=50)
requests = st.builds(PluginRequest, st.dictionaries(names, values, max_size=5), st.binary(max_size=200))


def encoded(request: PluginRequest) -> bytes:
    environment = b"".join(f"{key}={value}\0".encode() for key, value in request.environment.items())
    return PROTOCOL + b"%d %d\n" % (len(environment), len(request.config)) + environment + request.config


def read(pieces):
    """The request, the words of the error, or None if more bytes were needed."""
    reader = RequestReader()
    try:
        for piece in pieces:
            if (request := reader.feed(piece)) is not None:
                return request
    except WireError as error:
        return str(error)
    return None


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(requests, st.lists(st.integers(0, 10_000), max_size=10))
def test_a_request_is_read_as_it_was_sent_in_whatever_pieces(request_, places):
    assert read(cut(encoded(request_), places)) == request_


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(PROTOCOL.__add__)), st.lists(st.integers(0, 400)))
def test_any_bytes_give_a_request_an_error_or_a_wish_for_more_whatever_the_pieces(data, places):
    assert read([data]) == read(cut(data, places)) == read([data[i : i + 1] for i in range(len(data))])


@given(requests, st.integers(0, 300), st.binary(max_size=5))
def test_a_damaged_request_never_crashes_the_reader(request_, at, junk):
    data = encoded(request_)
    damaged = data[:at] + junk + data[at + 1 :]
    assert read([damaged]) == read(cut(damaged, [at]))


@given(requests)
def test_what_follows_a_request_is_ignored(request_):
    assert read([encoded(request_) + b"more"]) == request_


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\n", "may have different versions"),
        (b"WINDLASS-CNI 2 0 0\n", "may have different versions"),
        (PROTOCOL + b"-1 0\n", "two sizes"),
        (PROTOCOL + b"0 %d\n" % (MAX_CONFIG + 1), "the maximum is 65536 and 1048576"),
        (b"x" * MAX_HEADER, "no line end"),
        (PROTOCOL + b"5 0\nCNI_A", "not terminated"),
        (PROTOCOL + b"7 0\nPATH=1\0", "not a CNI_ variable"),
        (PROTOCOL + b"8 0\nCNI_A=\xff\0", "not UTF-8"),
    ],
)
def test_a_malformed_request_is_an_error(data, words):
    assert words in read([data])


def test_a_request_that_ends_early_is_said_to():
    reader = RequestReader()
    reader.feed(PROTOCOL + b"10 0\nCNI_")
    assert "closed after 24 bytes" in str(reader.cut_off())


def test_an_answer_carries_exit_code_and_output():
    assert encode(PluginReply(1, b"{}\n")) == b"WINDLASS-CNI 1 1 3\n{}\n"
