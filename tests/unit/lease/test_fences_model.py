"""The fences against a reference model, over any order of calls."""

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from headrace.lease.fences import Accepted, ChunkKey, CompletionFences, RefusalReason, Refused
from headrace.shm.token import CompletionToken

REMEMBERED = 6
keys = st.builds(ChunkKey, st.just(0), st.integers(0, 1), st.integers(1, 3))


class FencesModel(RuleBasedStateMachine):
    """The model keeps every token's key and fate for ever, and beside it which deaths are still remembered."""

    tokens = Bundle("tokens")
    acceptances = Bundle("acceptances")

    def __init__(self) -> None:
        super().__init__()
        self.fences = CompletionFences(1, itertools.count(77).__next__, remembered=REMEMBERED)
        self.key: dict[CompletionToken, ChunkKey] = {}
        self.fate: dict[CompletionToken, RefusalReason | None] = {}
        self.remembered: list[CompletionToken] = []
        self.gates: set[CompletionToken] = set()

    def newest(self, key: ChunkKey) -> CompletionToken | None:
        return max((t for t, k in self.key.items() if k == key), key=lambda t: t.serial, default=None)

    def bury(self, token: CompletionToken, reason: RefusalReason) -> None:
        self.fate[token] = reason
        self.remembered.append(token)
        if len(self.remembered) > REMEMBERED:
            del self.remembered[0]

    @rule(target=tokens, key=keys)
    def issue(self, key: ChunkKey) -> CompletionToken:
        earlier = self.newest(key)
        if earlier is not None and self.fate[earlier] is None:
            self.bury(earlier, RefusalReason.SUPERSEDED)
        token = self.fences.issue(key)
        assert token not in self.key
        self.key[token] = key
        self.fate[token] = None
        return token

    @rule(target=acceptances, token=tokens)
    def accept(self, token: CompletionToken) -> Accepted:
        live, fate = self.fate[token] is None, self.fate[token]
        assert self.fences.gate_is_open(token) is (token not in self.gates)
        if live and token in self.gates:
            self.open_gate(token)
        answer = self.fences.accept(token.to_bytes())
        if live:
            assert answer == Accepted(token, self.key[token])
            self.bury(token, RefusalReason.CONSUMED)
        elif token in self.remembered:
            assert answer == Refused(fate or RefusalReason.UNKNOWN)
        else:
            assert answer == Refused(RefusalReason.UNKNOWN)
        return Accepted(token, self.key[token])

    @rule(accepted=consumes(acceptances))
    def restore(self, accepted: Accepted) -> None:
        token = accepted.token
        expected = (
            self.fate[token] is RefusalReason.CONSUMED
            and token in self.remembered
            and self.newest(self.key[token]) == token
        )
        assert self.fences.restore(accepted) is expected
        if expected:
            self.fate[token] = None
            self.remembered.remove(token)

    @rule(token=tokens)
    def revoke(self, token: CompletionToken) -> None:
        live = self.fate[token] is None
        assert self.fences.revoke(token) is live
        if live:
            self.bury(token, RefusalReason.REVOKED)

    @rule(token=tokens)
    def arm(self, token: CompletionToken) -> None:
        if self.fate[token] is None and token not in self.gates:
            self.fences.arm(token)
            self.gates.add(token)

    @rule(token=tokens)
    def open_gate(self, token: CompletionToken) -> None:
        if token in self.gates:
            self.fences.open_gate(token)
            self.gates.remove(token)

    @invariant()
    def only_the_newest_token_of_a_chunk_can_live(self) -> None:
        live = [token for token, fate in self.fate.items() if fate is None]
        assert self.fences.outstanding == len(live)
        for token in live:
            assert self.fences.peek(token) == self.key[token]
            assert self.newest(self.key[token]) == token


FencesModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestFencesAgainstTheModel = FencesModel.TestCase
