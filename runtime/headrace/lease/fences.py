"""Which token may still complete which chunk, and whether its lease is on record yet.

The fences belong to the supervisor's loop and have no lock. They live as long as the incarnation: after a restart
nothing of the former one is accepted. An exception inside one of their operations poisons them: from then on each
answers `FencesPoisonedError`, and the run stops rather than guess.
"""

from __future__ import annotations

import enum
import functools
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar

import msgspec

from headrace.errors import FencesPoisonedError, HeadraceError
from headrace.shm.token import MISSING, CompletionToken

REMEMBERED: Final = 65_536
_U64: Final = (1 << 64) - 1


class ChunkKey(NamedTuple):
    """A chunk, whatever the attempt."""

    sink: int
    shard: int
    chunk: int


class WorkerAttribution(msgspec.Struct, frozen=True):
    """Which process a worker was: copied when it takes a chunk, never rewritten."""

    name: str
    pid: int
    start_ticks: int
    host: str
    version: str


class RefusalReason(enum.StrEnum):
    """Why a token completes nothing."""

    MISSING = "missing"
    MALFORMED = "malformed"
    WRONG_INCARNATION = "wrong_incarnation"
    SUPERSEDED = "superseded"
    CONSUMED = "consumed"
    REVOKED = "revoked"
    UNKNOWN = "unknown"


class Accepted(msgspec.Struct, frozen=True):
    """What an accept consumed."""

    token: CompletionToken
    key: ChunkKey


class Refused(msgspec.Struct, frozen=True):
    reason: RefusalReason


class _Issued:
    """What is known of one token, while it lives and, for a while, after."""

    __slots__ = ("died_of", "key", "worker")

    def __init__(self, key: ChunkKey) -> None:
        self.key = key
        self.worker: WorkerAttribution | None = None
        self.died_of = RefusalReason.UNKNOWN


P = ParamSpec("P")
T = TypeVar("T")


def _poisons(
    operation: Callable[Concatenate[CompletionFences, P], T],
) -> Callable[Concatenate[CompletionFences, P], T]:
    @functools.wraps(operation)
    def guarded(self: CompletionFences, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.poison is not None:
            raise FencesPoisonedError(f"the fences failed earlier ({self.poison}): the run must stop")
        try:
            return operation(self, *args, **kwargs)
        except Exception as error:
            self.poison = f"{operation.__name__}: {error!r}"
            raise FencesPoisonedError(f"the fences failed in {self.poison}: the run must stop") from error
        except BaseException as error:
            self.poison = f"{operation.__name__}: {error!r}"
            raise

    return guarded


class CompletionFences:
    """The tokens of one incarnation, and their lease gates.

    ``nonce`` gives 64 random bits. Of dead tokens the last ``remembered`` are told apart; older ones are unknown.
    """

    def __init__(self, incarnation: int, nonce: Callable[[], int], *, remembered: int = REMEMBERED) -> None:
        self.incarnation = incarnation
        self.refusals: Counter[RefusalReason] = Counter()
        self.poison: str | None = None
        self._nonce = nonce
        self._remembered = remembered
        self._serial = 0
        self._live: dict[CompletionToken, _Issued] = {}
        self._dead: OrderedDict[CompletionToken, _Issued] = OrderedDict()
        self._latest: dict[ChunkKey, CompletionToken] = {}
        self._gates: set[CompletionToken] = set()

    @property
    def outstanding(self) -> int:
        """Tokens that would be accepted."""
        return len(self._live)

    @_poisons
    def issue(self, key: ChunkKey) -> CompletionToken:
        """A new token for the chunk; its earlier one, if it lives, is superseded.

        Issue again only when the chunk's holder is proved gone or gave it back.
        """
        token = CompletionToken(self.incarnation, self._serial + 1, self._nonce() & _U64)
        self._serial += 1
        earlier = self._latest.get(key)
        if earlier is not None and earlier in self._live:
            self._bury(earlier, RefusalReason.SUPERSEDED)
        self._live[token] = _Issued(key)
        self._latest[key] = token
        return token

    @_poisons
    def issued_to(self, token: CompletionToken, worker: WorkerAttribution) -> None:
        """Remember whom a live token is sent to."""
        self._live[token].worker = worker

    @_poisons
    def was_issued_to(self, token: bytes | CompletionToken, worker: WorkerAttribution) -> bool:
        """Whether this very process was once sent this token: then a refusal of it is no reason to replace it."""
        known = self._known(_parse(token))
        return known is not None and known.worker == worker

    @_poisons
    def peek(self, token: bytes | CompletionToken) -> ChunkKey | None:
        """The chunk that this token may complete now; None: none. Consumes and counts nothing."""
        issued = self._live.get(_parse(token) or MISSING)
        return None if issued is None else issued.key

    @_poisons
    def accept(self, token: bytes | CompletionToken) -> Accepted | Refused:
        """Compare and consume in one step. The token's gate must be open (HR-5): see `gate_is_open`.

        A refusal changes nothing but its count.
        """
        parsed = _parse(token)
        issued = None if parsed is None else self._live.get(parsed)
        if parsed is None or issued is None:
            return self._refuse(parsed)
        if parsed in self._gates:
            raise HeadraceError(f"completion of chunk {issued.key} before its lease was settled")
        self._bury(parsed, RefusalReason.CONSUMED)
        return Accepted(parsed, issued.key)

    @_poisons
    def restore(self, accepted: Accepted) -> bool:
        """Put back what an accept consumed, because settling failed. False: a newer token was issued since, or it is
        not consumed any more."""
        issued = self._dead.get(accepted.token)
        if issued is None or issued.died_of is not RefusalReason.CONSUMED:
            return False
        if self._latest.get(issued.key) != accepted.token:
            return False
        del self._dead[accepted.token]
        self._live[accepted.token] = issued
        return True

    @_poisons
    def revoke(self, token: CompletionToken) -> bool:
        """Withdraw this token alone. False: it did not live."""
        if token not in self._live:
            return False
        self._bury(token, RefusalReason.REVOKED)
        return True

    @_poisons
    def arm(self, token: CompletionToken) -> None:
        """Close the token's gate: no completion of it until the lease is settled."""
        if token not in self._live or token in self._gates:
            raise HeadraceError(f"the gate of token {token.serial} cannot be armed: the token is dead or armed already")
        self._gates.add(token)

    @_poisons
    def open_gate(self, token: CompletionToken) -> None:
        """Open an armed gate, for good. A second opening is an error (HR-5)."""
        self._gates.remove(token)

    @_poisons
    def gate_is_open(self, token: CompletionToken) -> bool:
        """Whether nothing is waited for; true of a token that was never armed."""
        return token not in self._gates

    def _known(self, token: CompletionToken | None) -> _Issued | None:
        return None if token is None else self._live.get(token) or self._dead.get(token)

    def _refuse(self, token: CompletionToken | None) -> Refused:
        reason = self._reason(token)
        self.refusals[reason] += 1
        return Refused(reason)

    def _reason(self, token: CompletionToken | None) -> RefusalReason:
        if token is None:
            return RefusalReason.MALFORMED
        if token == MISSING:
            return RefusalReason.MISSING
        if token.incarnation != self.incarnation:
            return RefusalReason.WRONG_INCARNATION
        dead = self._dead.get(token)
        return RefusalReason.UNKNOWN if dead is None else dead.died_of

    def _bury(self, token: CompletionToken, reason: RefusalReason) -> None:
        issued = self._live.pop(token)
        issued.died_of = reason
        self._dead[token] = issued
        while len(self._dead) > self._remembered:
            forgotten, its = self._dead.popitem(last=False)
            if self._latest.get(its.key) == forgotten:
                del self._latest[its.key]


def _parse(token: bytes | CompletionToken) -> CompletionToken | None:
    return CompletionToken.from_bytes(token) if isinstance(token, bytes) else token
