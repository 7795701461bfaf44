"""What one client of the control socket may say, and what is owed to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.admin.conversation import IDLE_LIMIT, MAX_REQUEST, ControlError, Conversation


def answered(talk: Conversation, now: float = 0.0) -> list[dict[str, Any]]:
    """Answer all there is to answer, echoing the request."""
    sent = b""
    while talk.wants_to_send:
        try:
            request = talk.next_request()
            if request is not None:
                talk.answer({"ok": request})
        except ControlError as error:
            talk.answer({"error": str(error)})
        if not talk.outgoing:
            break
        sent += talk.outgoing
        talk.sent(len(talk.outgoing), now)
    return [json.loads(line) for line in sent.splitlines()]


@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers(), max_size=3), max_size=5), st.data())
def test_requests_are_answered_in_order_however_they_are_cut(extras: list[dict[str, int]], data: st.DataObject) -> None:
    requests = [{**extra, "verb": f"v{number}"} for number, extra in enumerate(extras)]
    stream = b"".join(json.dumps(request).encode() + b"\n" for request in requests)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    talk = Conversation(0.0)

    got: list[dict[str, Any]] = []
    for first, last in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if first < last:
            talk.received(stream[first:last])
        got += answered(talk)

    assert got == [{"ok": request} for request in requests]
    assert not talk.is_over


@given(st.binary(max_size=200).filter(bool))
def test_any_bytes_are_a_request_or_an_error(data: bytes) -> None:
    talk = Conversation(0.0)

    talk.received(data)
    talk.received(b"")

    assert len(answered(talk)) == data.count(b"\n") + (not data.endswith(b"\n"))
    assert talk.is_over


@pytest.mark.parametrize("line", [b"[]", b"null", b'{"verb": 1}', b"{}", b"\xff", b"", b"[" * 60_000])
def test_what_is_no_request_is_told_so_and_the_client_may_go_on(line: bytes) -> None:
    talk = Conversation(0.0)

    talk.received(line + b"\n")
    assert "error" in answered(talk)[0]

    talk.received(b'{"verb": "status"}\n')
    assert answered(talk) == [{"ok": {"verb": "status"}}]


def test_a_request_of_the_largest_size_is_taken_and_one_byte_more_ends_the_client() -> None:
    fits = b'{"verb":"%s"}' % (b"x" * (MAX_REQUEST - len(b'{"verb":""}')))
    talk, other = Conversation(0.0), Conversation(0.0)

    talk.received(fits + b"\n")
    other.received(fits + b" \n")

    assert "ok" in answered(talk)[0]
    assert "at most 65536 bytes" in answered(other)[0]["error"]
    assert other.is_over


def test_a_line_without_an_end_is_refused_as_soon_as_it_is_too_long() -> None:
    talk = Conversation(0.0)

    talk.received(b" " * (MAX_REQUEST + 1))

    assert "at most" in answered(talk)[0]["error"]
    assert talk.is_over


def test_bytes_alone_do_not_extend_a_clients_time_but_a_whole_answer_does() -> None:
    talk = Conversation(0.0)

    talk.received(b'{"verb":')
    assert talk.deadline == IDLE_LIMIT

    talk.received(b'"status"}\n')
    answered(talk, now=5.0)
    assert talk.deadline == 5.0 + IDLE_LIMIT


def test_nothing_is_asked_of_the_run_while_an_answer_is_owed() -> None:
    talk = Conversation(0.0)
    talk.received(b'{"verb": "a"}\n{"verb": "b"}\n')

    talk.next_request()
    talk.answer({"ok": 1})

    assert talk.next_request() is None
    talk.sent(3, 0.0)
    assert talk.next_request() is None


def test_an_answer_that_is_no_json_is_an_error() -> None:
    talk = Conversation(0.0)

    talk.answer({"ok": object()})

    assert b"cannot be written as JSON" in bytes(talk.outgoing)
