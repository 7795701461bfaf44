"""One client of the control socket: which request is next, which bytes are owed, and when its time is over.

::

    client   {"verb": …}\n            at most MAX_REQUEST bytes a line, UTF-8 JSON, one object
    server   {"ok": …}\n  or  {"error": "…"}\n    one answer a line, in the order of the requests

A client that sends a line that is too long, or reads its answers too slowly, is closed; one that sends something that
is no request is told so and may go on.
"""

from __future__ import annotations

from typing import cast

import msgspec

from headrace.errors import HeadraceError

MAX_REQUEST = 64 * 1024
IDLE_LIMIT = 10.0
"""Seconds that a client may take from one answer, or its connection, to the end of its next."""


class ControlError(HeadraceError):
    """A request that cannot be answered; its message is the answer."""


class Conversation:
    """The state of one client. Bytes go in by `received`, requests come out by `next_request`."""

    def __init__(self, now: float) -> None:
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._ended = False
        self._broken = False
        self.deadline = now + IDLE_LIMIT

    def received(self, data: bytes) -> None:
        """Take what the client sent; no bytes mean that it will send no more."""
        if data:
            self._inbox += data
            return
        self._ended = True
        if self._inbox and not self._inbox.endswith(b"\n"):
            self._inbox += b"\n"

    def next_request(self) -> dict[str, object] | None:
        """The next whole request, if nothing is owed to the client. Raises `ControlError` for a bad one."""
        if self._outbox or self._broken:
            return None
        line = self._next_line()
        return None if line is None else _decoded(line)

    def _next_line(self) -> bytes | None:
        end = self._inbox.find(b"\n", 0, MAX_REQUEST + 1)
        if end < 0:
            if len(self._inbox) > MAX_REQUEST:
                self._broken = True
                raise ControlError(f"a request may have at most {MAX_REQUEST} bytes")
            return None
        line = bytes(self._inbox[:end])
        del self._inbox[: end + 1]
        return line

    def answer(self, answer: dict[str, object]) -> None:
        """Owe the client this answer."""
        try:
            self._outbox += msgspec.json.encode(answer) + b"\n"
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            self._outbox += msgspec.json.encode({"error": f"the answer cannot be written as JSON: {error}"}) + b"\n"

    @property
    def outgoing(self) -> memoryview:
        """The bytes that are owed."""
        return memoryview(bytes(self._outbox))

    def sent(self, count: int, now: float) -> None:
        """So many of the owed bytes are gone; with the last of them the client's time begins anew."""
        del self._outbox[:count]
        if count and not self._outbox:
            self.deadline = now + IDLE_LIMIT

    @property
    def wants_to_send(self) -> bool:
        """Whether the next step needs no word from the client: bytes are owed, or a request waits."""
        return bool(self._outbox) or b"\n" in self._inbox or len(self._inbox) > MAX_REQUEST

    @property
    def is_over(self) -> bool:
        """Whether nothing will come of this client any more."""
        return not self._outbox and (self._broken or (self._ended and not self._inbox))


def _decoded(line: bytes) -> dict[str, object]:
    try:
        decoded: object = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ControlError(f"a request is one JSON object a line: {error}") from None
    request = cast("dict[str, object]", decoded) if isinstance(decoded, dict) else {}
    if not isinstance(request.get("verb"), str):
        raise ControlError('a request is a JSON object with a "verb"')
    return request
