"""The verbs of the real command: what they print, how they end, and what they leave alone."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.process.records import TO_SQLITE, chain, landed, lines_of_numbers, write_lines
from tests.process.run_headrace import COMMAND, Finished, Headrace, Running, wait_until

COUNT = 50
STEPS = ("map(lambda r: (r.n,))", f"sink({TO_SQLITE})")
FOLLOWED = 'Files("in.ndjson", decode=Number, follow=True)'


@pytest.fixture
def bounded(headrace: Headrace) -> Path:
    """A pipeline that ends."""
    write_lines(headrace, lines_of_numbers(COUNT))
    return headrace.write("p.py", chain(*STEPS))


@pytest.fixture
def endless(headrace: Headrace) -> Path:
    """A pipeline that follows its file."""
    write_lines(headrace, lines_of_numbers(COUNT))
    return headrace.write("p.py", chain(*STEPS, source=FOLLOWED))


def json_of(finished: Finished) -> dict[str, object]:
    """The one object that a verb with ``--json`` prints."""
    (line,) = finished.stdout.splitlines()
    found: dict[str, object] = json.loads(line)
    return found


def end(headrace: Headrace, *where: str | Path) -> None:
    headrace.run("stop", *where).expect(0)


def test_the_report_says_what_the_run_came_to(headrace: Headrace, bounded: Path) -> None:
    report = headrace.run_pipeline(bounded, "--workers", "2").expect(0).report

    ((partition, position),) = report["watermarks"].items()
    assert partition.startswith(f"{headrace.folder / 'in.ndjson'}#")
    assert position == (headrace.folder / "in.ndjson").stat().st_size
    assert (report["pipeline"], report["state"], report["exit_code"], report["incarnation"]) == ("p", "complete", 0, 1)
    assert (report["records_in"], report["rows_written"]) == (COUNT, COUNT)
    zero = ("filtered", "skipped", "dead_letters", "in_flight", "workers_lost", "chunks_redelivered", "acks_refused")
    assert [report[name] for name in zero] == [0] * len(zero)
    assert report["seconds"] > 0
    assert report["error"] is None


def test_without_json_a_run_ends_with_lines_for_people_and_shows_what_the_pipeline_prints(headrace: Headrace) -> None:
    write_lines(headrace, lines_of_numbers(COUNT))
    pipeline = headrace.write("p.py", chain("inspect(print)", *STEPS, more='print("imported")\n'))

    plain = headrace.run("run", pipeline, "--workers", "1").expect(0)
    with_json = headrace.run_pipeline(pipeline, "--workers", "1").expect(0)

    assert plain.stdout.count("Number(n=") == COUNT
    assert f": {COUNT} records in, {COUNT} rows written" in plain.stdout
    assert "imported" in plain.stderr
    assert json_of(with_json)["records_in"] == COUNT
    assert with_json.stderr.count("Number(n=") == COUNT
    assert "imported" in with_json.stderr


def test_the_default_state_directory_is_named_after_the_pipeline(headrace: Headrace, bounded: Path) -> None:
    headrace.run("run", bounded, "--workers", "1").expect(0)

    assert (headrace.folder / ".headrace" / "p" / "state.db").exists()
    assert json_of(headrace.run("leases", "--json").expect(0))["leases"]


def test_check_says_the_settings_with_their_origins_and_changes_nothing(headrace: Headrace, bounded: Path) -> None:
    headrace.write("more.toml", "[batch]\nmax_rows = 10\n[retry]\ninitial = '1s'\n")
    env = {"HEADRACE_RETRY__INITIAL": "2s", "HEADRACE_RETRY__MAX": "3s"}
    more = ("--config", "more.toml", "--set", "retry.max=4s", "--workers", "3")
    before = sorted(headrace.folder.iterdir())

    report = json_of(headrace.run("check", bounded, "--json", *more, env=env).expect(0))

    settings = report["settings"]
    assert isinstance(settings, dict)
    origins = {key: (settings[key]["value"], settings[key]["origin"]) for key in settings}
    assert origins["batch.max_rows"] == ("10", "file more.toml")
    assert origins["retry.initial"] == ("2s", "HEADRACE_RETRY__INITIAL")
    assert origins["retry.max"] == ("4s", "--set")
    assert origins["workers"] == ("3", "--workers")
    assert origins["chunk.linger"] == ("10ms", "pipeline")
    assert origins["drain.timeout"] == ("25s", "default")
    assert report["problems"] == []
    assert report["memory"]
    made = {path.name for path in set(headrace.folder.iterdir()) - set(before)}
    assert {name for name in made if not name.startswith(("std", "__pycache__"))} == set()


def test_check_explains_the_generated_code_of_both_sides(headrace: Headrace) -> None:
    write_lines(headrace, lines_of_numbers(1))
    steps = ("filter(lambda r: r.n > 1)", "shard_by(lambda r: r.n)", "map(lambda r: (r.n,))", f"sink({TO_SQLITE})")
    pipeline = headrace.write("p.py", chain(*steps))

    finished = headrace.run("check", pipeline, "--explain").expect(0)

    assert "this plan works" in finished.stdout
    assert "supervisor" in finished.stdout
    assert "worker" in finished.stdout
    assert finished.stdout.count("def ") >= 2


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--set", "batch.max_row=5"), "batch.max_rows"),
        (("--set", "backpressure.max_inflight_bytes=1MiB"), "max_inflight_bytes"),
        (("--set", "chunk.target_bytes=1MiB"), "shm.slot_bytes"),
        (("--workers", "none"), "workers"),
        (("--nothing",), "--nothing"),
    ],
)
def test_what_cannot_work_is_refused_by_run_and_by_check(
    headrace: Headrace, bounded: Path, more: tuple[str, ...], told: str
) -> None:
    refusals = [headrace.run(verb, bounded, *more).expect(2) for verb in ("check", "run")]

    assert all(told in refused.stderr for refused in refusals)
    assert not (headrace.folder / ".headrace").exists()


def test_a_setting_of_the_environment_yields_to_a_flag_and_beats_a_file(headrace: Headrace, bounded: Path) -> None:
    headrace.write("more.toml", "workers = 1\n[log]\nlevel = 'error'\n")
    env = {"HEADRACE_WORKERS": "2", "HEADRACE_STATE": str(headrace.state), "HEADRACE_LOG__LEVEL": "info"}

    by_environment = headrace.run("run", bounded, "--config", "more.toml", env=env).expect(0)
    by_flag = headrace.run("run", bounded, "--workers", "3", "--config", "more.toml", env=env).expect(0)

    assert '"workers": 2, "workers_because": "HEADRACE_WORKERS"' in by_environment.stderr
    assert '"workers": 3, "workers_because": "--workers"' in by_flag.stderr
    assert headrace.state.is_dir()


def test_a_run_in_the_background_is_started_asked_and_stopped(headrace: Headrace, endless: Path) -> None:
    started = json_of(headrace.run("start", endless, "--workers", "2", "--json").expect(0))
    again = headrace.run("start", endless).expect(4)
    foreground = headrace.run("run", endless).expect(4)
    wait_until(lambda: landed(headrace) == list(range(COUNT)), limit=10.0, what="all rows")
    status = json_of(headrace.run("status", "--json").expect(0))
    shown = headrace.run("status", endless).expect(0)
    stopped = json_of(headrace.run("stop", "--json").expect(0))
    nothing = headrace.run("stop").expect(0)
    dead = headrace.run("status").expect(1)

    pid = started["pid"]
    assert (started["state"], status["pid"]) == ("running", pid)
    assert f"pid {pid}" in again.stderr
    assert f"pid {pid}" in foreground.stderr
    assert status["state"] == "running"
    assert (status["records_in"], status["workers_ready"], status["workers_wanted"]) == (COUNT, 2, 2)
    workers = status["workers"]
    assert isinstance(workers, list)
    assert [one["name"] for one in workers] == ["worker-0", "worker-1"]
    shards = status["shards"]
    assert isinstance(shards, list)
    assert {one["worker"] for one in shards} == {"worker-0", "worker-1"}
    assert set(shards[0]) >= {"sink", "shard", "worker", "slots_used", "parked", "in_flight", "oldest_seconds"}
    assert "p: running for" in shown.stdout
    assert (stopped["state"], stopped["exit_code"]) == ("stopped", 0)
    assert "nothing runs" in nothing.stdout
    assert ".headrace/p" in dead.stderr
    log = (headrace.folder / ".headrace" / "p" / "headrace.log").read_text(encoding="utf-8")
    assert '"state": "drained"' in log
    assert not [one for one in headrace.processes() if one.is_running()]


def test_start_returns_the_code_of_a_run_that_ends_before_it_is_ready(headrace: Headrace) -> None:
    write_lines(headrace, lines_of_numbers(COUNT))
    headrace.write("out.db", "this is no database " * 100)
    pipeline = headrace.write("p.py", chain(*STEPS))

    failed = headrace.run("start", pipeline, "--workers", "1").expect(1)
    (headrace.folder / "in.ndjson").unlink()
    refused = headrace.run("start", pipeline, "--workers", "1").expect(2)

    assert "not a database" in failed.stderr
    assert "in.ndjson" in refused.stderr


def test_a_started_run_that_completes_is_a_success(headrace: Headrace, bounded: Path) -> None:
    headrace.run("start", bounded, "--workers", "1").expect(0)
    wait_until(lambda: landed(headrace) == list(range(COUNT)), limit=10.0, what="all rows")

    end(headrace, bounded)

    assert headrace.run("run", bounded, "--json").expect(0).report["records_in"] == 0


def test_with_several_state_directories_a_verb_asks_which(headrace: Headrace, bounded: Path) -> None:
    other = headrace.write("q.py", bounded.read_text(encoding="utf-8").replace('Pipeline("p"', 'Pipeline("q"'))
    none = headrace.run("status").expect(2)
    for pipeline in (bounded, other):
        headrace.run("run", pipeline, "--workers", "1").expect(0)

    several = [headrace.run(verb).expect(2) for verb in ("status", "stop", "leases")]
    chosen = [
        headrace.run("leases", other, "--json").expect(0),
        headrace.run("leases", "--state", ".headrace/q", "--json").expect(0),
        headrace.run("leases", "--json", env={"HEADRACE_STATE": ".headrace/q"}).expect(0),
    ]

    assert "no state directory" in none.stderr
    for refused in several:
        assert str(headrace.folder / ".headrace" / "p") in refused.stderr
        assert str(headrace.folder / ".headrace" / "q") in refused.stderr
    assert len({finished.stdout for finished in chosen}) == 1


def test_leases_say_who_held_what_and_how_it_ended(headrace: Headrace, bounded: Path) -> None:
    headrace.run_pipeline(bounded, "--workers", "1").expect(0)

    leases = json_of(headrace.run("leases", "--state", headrace.state, "--json").expect(0))["leases"]
    shown = headrace.run("leases", "--state", headrace.state).expect(0)
    missing = headrace.run("leases", "--state", "nowhere").expect(2)

    assert isinstance(leases, list)
    assert sum(lease["rows"] for lease in leases) == COUNT
    assert {(lease["worker"], lease["ended"], lease["outcome"]) for lease in leases} == {
        ("worker-0", "done", "delivered")
    }
    assert "worker-0" in shown.stdout
    assert "nowhere" in missing.stderr


def test_connectors_lists_what_is_installed(headrace: Headrace) -> None:
    found = json_of(headrace.run("connectors", "--json").expect(0))["connectors"]

    assert isinstance(found, list)
    named = {(one["kind"], one["name"]) for one in found}
    assert {("source", "files"), ("source", "stdin"), ("sink", "sqlite"), ("sink", "ndjson_files")} <= named
    assert {("sink", "stdout"), ("sink", "blackhole"), ("writer", "sqlite"), ("writer", "stdout")} <= named
    assert all(one["package"].startswith("headrace ") for one in found if one["name"] == "files")


TOML = """
[pipeline]
name = "p"
shard_by = "n"
[source]
type = "files"
paths = "in.ndjson"
decode = "functions:Number"
[[transform]]
op = "filter"
call = "functions:keep"
[[transform]]
op = "map"
call = "functions:row"
[sinks.main]
type = "sqlite"
path = "toml.db"
table = "t"
create = true
columns = ["n"]
[batch]
linger = "10ms"
"""

FUNCTIONS = """
import msgspec

class Number(msgspec.Struct):
    n: int
    text: str = ""

def keep(r):
    return r.n % 3 != 0

def row(r):
    return (r.n,)
"""


def test_a_toml_pipeline_does_what_the_same_python_pipeline_does(headrace: Headrace) -> None:
    write_lines(headrace, lines_of_numbers(COUNT))
    headrace.write("functions.py", FUNCTIONS)
    toml = headrace.write("pipeline.toml", TOML)
    more = "import functions\n"
    steps = ('shard_by("n")', "filter(functions.keep)", "map(functions.row)", f"sink({TO_SQLITE})")
    python = headrace.write("p.py", chain(*steps, source='Files("in.ndjson", decode=functions.Number)', more=more))

    reports = [
        headrace.run("run", pipeline, "--state", name, "--json", "--workers", "2").expect(0).report
        for pipeline, name in ((toml, "toml.state"), (python, "python.state"))
    ]

    same = ("pipeline", "state", "records_in", "filtered", "rows_written", "skipped", "in_flight")
    assert [reports[0][name] for name in same] == [reports[1][name] for name in same]
    assert landed(headrace, database="toml.db") == landed(headrace) == [n for n in range(COUNT) if n % 3]


STREAM = chain(
    "filter(lambda r: r.n % 2)", "map(lambda r: {'n': r.n})", "sink(Stdout())", source="Stdin(decode=Number)"
)


def test_standard_input_to_standard_output_in_a_shell_pipe(headrace: Headrace) -> None:
    """G01: rows alone are on standard output, whole, and nothing of them is missing."""
    count = 20_000
    write_lines(headrace, lines_of_numbers(count))
    pipeline = headrace.write("p.py", STREAM)

    counted = headrace.start(
        "-c", f"cat in.ndjson | {COMMAND} run {pipeline} --workers 2 | wc -l", under=("sh",), command=False
    ).wait()
    rows = headrace.run("run", pipeline, "--json", stdin=(headrace.folder / "in.ndjson").read_bytes()).expect(0)

    assert counted.stdout.strip() == str(count // 2)
    assert sorted(json.loads(line)["n"] for line in rows.stdout.splitlines()) == list(range(1, count, 2))
    report = json.loads(rows.stderr.splitlines()[-1])
    assert (report["records_in"], report["filtered"], report["rows_written"]) == (count, count // 2, count // 2)


def test_a_reader_that_goes_away_ends_the_run_and_says_so(headrace: Headrace) -> None:
    write_lines(headrace, lines_of_numbers(100_000))
    pipeline = headrace.write("p.py", STREAM)

    finished = headrace.start(
        "-c", f"cat in.ndjson | {COMMAND} run {pipeline} --workers 1 | head -n 3", under=("sh",), command=False
    ).wait()

    assert len(finished.stdout.splitlines()) == 3
    wait_until(lambda: not headrace.processes(), limit=10.0, what="the run has ended")
    assert "Traceback" not in finished.stderr


def test_the_live_view_of_a_terminal_ends_with_the_summary(headrace: Headrace, bounded: Path) -> None:
    controller, terminal = os.openpty()
    try:
        running = headrace.start(
            "-c", f"{COMMAND} run {bounded} --workers 1 >&2", under=("sh",), command=False, stderr=terminal
        )
        os.close(terminal)
        running.wait().expect(0)
        shown = _all_of(controller)
    finally:
        os.close(controller)

    assert landed(headrace) == list(range(COUNT))
    assert b"complete in" in shown
    assert f"{COUNT} records in".encode() in shown
    assert b'"event"' not in shown


def _all_of(controller: int) -> bytes:
    """What was written to a terminal that nobody has open any more."""
    shown = b""
    while True:
        try:
            shown += os.read(controller, 65_536)
        except OSError:
            return shown


def test_a_stop_is_answered_while_the_run_drains(headrace: Headrace, endless: Path) -> None:
    running = headrace.start_pipeline(endless, "--workers", "1")
    running.wait_until(lambda: landed(headrace) == list(range(COUNT)), "all rows")

    end(headrace, "--state", headrace.state)
    report = running.wait(5.0).expect(0).report

    assert report["state"] == "drained"


def test_sigint_drains_like_sigterm(headrace: Headrace, endless: Path) -> None:
    running: Running = headrace.start_pipeline(endless, "--workers", "1")
    running.wait_until(lambda: landed(headrace) == list(range(COUNT)), "all rows")

    running.signal(signal.SIGINT)

    assert running.wait(5.0).expect(0).report["state"] == "drained"
