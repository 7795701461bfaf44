"""The source in memory and its script."""

from __future__ import annotations

import pytest

from headrace.errors import SourceError
from headrace.record import BadRecord, LaneId, LanesRevoked, PartitionId
from headrace.testing import MemorySource
from tests.unit.sources.source_context import FakeContext, Run, run_to_end


def test_records_come_with_their_keys_and_positions() -> None:
    source = MemorySource({"p": [b"a", b"b", b"c"]}, keys={"p": ["x", None, b"y"]})

    run = run_to_end(source, FakeContext(), max_records=2)

    assert [(batch.payloads, batch.keys, batch.end) for batch in run.batches] == [
        ([b"a", b"b"], ["x", None], 2),
        ([b"c"], [b"y"], 3),
    ]


def test_rejects_and_faults_come_where_the_script_has_them() -> None:
    bad = BadRecord(partition=PartitionId(""), position=0, stage="read", cause="torn", raw=b"x")
    source = MemorySource([b"a", bad, SourceError("gone", retryable=True), b"b"])
    run = Run(source, FakeContext())

    run.turn()
    with pytest.raises(SourceError, match="gone"):
        run.turn()
    run.settle()

    assert run.lines == [b"a", b"b"]
    assert [(reject.partition, reject.position) for reject in run.rejects] == [("memory", 1)]
    assert [batch.end for batch in run.batches] == [2, 3]


def test_the_pace_bounds_batches() -> None:
    sizes = iter([1, 0, 2])
    source = MemorySource([b"%d" % number for number in range(6)], pace=lambda _: next(sizes, None))
    run = Run(source, FakeContext())

    for _ in range(4):
        run.turn()

    assert [len(batch.payloads or ()) for batch in run.batches] == [1, 2, 3]


def test_scripted_events_come_first_and_what_it_was_told_is_kept() -> None:
    source = MemorySource({"p": [b"a"], "q": [b"b"]})
    run = Run(source, FakeContext()).settle()

    source.pause([LaneId("p")])
    paused = source.paused
    source.resume([LaneId("p")])
    source.tell(LanesRevoked((LaneId("p"),)))
    run.settle()
    run.close()

    assert paused == {LaneId("p")}
    assert run.revoked == ["p"]
    assert [told.call for told in source.told] == ["commit", "commit", "pause", "resume", "close"]


def test_an_open_ended_source_goes_on_until_it_is_finished() -> None:
    source = MemorySource(bounded=False)
    run = Run(source, FakeContext()).settle()

    source.feed([b"a"])
    source.feed([b"b"], "other")
    woken = run.ctx.woken.is_set()
    open_ended = run.settle().drained
    source.finish()

    assert woken
    assert not open_ended
    assert run.settle().drained
    assert run.lines == [b"a", b"b"]
