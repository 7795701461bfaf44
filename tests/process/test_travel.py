"""What travels to workers is run there: in an isolated interpreter that knows nothing of the pipeline's folder."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

PACK = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from headrace.chain import travel
from headrace.config.pipeline_file import load_pipeline
from headrace.errors import ConfigError
from headrace.record import OnError
loaded = load_pipeline(Path({folder!r}) / "pipe.py")
built = loaded.pipeline.build(on_error=OnError.SKIP)
try:
    Path({parcel!r}).write_bytes(travel.pack(loaded.modules_root, (built.worker, list(loaded.pipeline.sinks.values()))))
except ConfigError as error:
    sys.exit(f"refused: {{error}}")
"""

RUN = """
import sys
from pathlib import Path
from headrace.chain import travel
from headrace.chain.build import Carry
from headrace.codec.records import RecordsCodec
chain, sinks = travel.unpack(Path({parcel!r}).read_bytes())
body = Path({body!r}).read_bytes()
lines = body.splitlines()
if chain.carry is not Carry.LINES:
    body = RecordsCodec(bytes).encode(lines)
records, bad = chain.decode_group(memoryview(body), len(lines))
output = chain.run(records)
print([*output.rows, *(f"{{one.stage}}: {{one.cause}}" for one in output.bad)])
"""

HEAD = """
from headrace import Pipeline
from headrace.sources import Files
from headrace.sinks import Stdout
"""


def python(*arguments: str) -> str:
    """Run an interpreter to its end; what it printed. A failure is shown whole."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def travel(tmp_path: Path) -> Callable[..., str]:
    """Writes a pipeline file, packs its worker chain in one process, and runs it over JSON lines in another."""
    folder, parcel, body = tmp_path / "folder", tmp_path / "parcel", tmp_path / "body"

    def run(source: str, lines: str, *, after_packing: Callable[[Path], None] | None = None, **modules: str) -> str:
        folder.mkdir()
        (folder / "pipe.py").write_text(HEAD + textwrap.dedent(source))
        for name, text in modules.items():
            file = folder / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(textwrap.dedent(text))
        body.write_text("".join(line + "\n" for line in lines.split()))
        python("-I", "-c", PACK.format(folder=str(folder), parcel=str(parcel)))
        if after_packing is not None:
            after_packing(folder)
        return python("-I", "-c", RUN.format(parcel=str(parcel), body=str(body)))

    return run


def refusal(tmp_path: Path, source: str) -> str:
    """What packing a pipeline file says when it refuses."""
    (tmp_path / "pipe.py").write_text(HEAD + textwrap.dedent(source))
    code = PACK.format(folder=str(tmp_path), parcel=str(tmp_path / "parcel"))
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr


def test_lambdas_closures_and_functions_of_the_file_travel(travel: Callable[..., str]) -> None:
    """V01"""
    source = """
        import functools
        FACTOR = 3

        def adder(amount):
            def add(value):
                return value + amount
            return add

        class Scale:
            def __init__(self, by):
                self.by = by
            def apply(self, value):
                return value * self.by
            def __call__(self, value):
                return value - self.by

        def power(base, exponent):
            return base ** exponent

        pipeline = (
            Pipeline("x").source(Files("in.ndjson")).shard_by("v")
            .map(lambda record: record["v"] * FACTOR)
            .map(adder(10)).map(Scale(2).apply).map(Scale(1)).map(functools.partial(power, exponent=2))
            .filter(lambda value: value > 400).sink(Stdout())
        )
    """

    printed = travel(source, '{"v":1} {"v":0} {"v":2}')

    assert printed == str([((3 + 10) * 2 - 1) ** 2, ((6 + 10) * 2 - 1) ** 2])


def test_structs_and_enums_of_a_function_travel_with_all_they_have(travel: Callable[..., str]) -> None:
    """V01"""
    source = """
        import enum
        from typing import Annotated
        import msgspec

        def made():
            class Kind(enum.StrEnum):
                SMALL = "s"
                LARGE = "l"
                @property
                def loud(self):
                    return self.value.upper()

            class Base(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
                the_id: Annotated[int, msgspec.Meta(ge=0)]
                kind: Kind = Kind.SMALL
                tags: list[str] = []

                def __post_init__(self):
                    self.tags.append(f"id{self.the_id}")

            class Item(Base, kw_only=True):
                price: float
                under: "Item | None" = None
                def total(self):
                    return self.price + (self.under.total() if self.under else 0)
            Item.__annotations__["under"] = Item | None
            return Item

        Item = made()
        pipeline = (
            Pipeline("x").source(Files("in.ndjson", decode=Item)).shard_by("the_id")
            .map(lambda item: (item.the_id, item.kind.loud, item.tags, item.total(), type(item).__name__))
            .sink(Stdout())
        )
    """
    lines = '{"theId":1,"price":2,"kind":"l","under":{"theId":2,"price":3}} {"theId":4,"price":1}'

    printed = travel(source, lines)

    assert printed == str([(1, "L", ["id1"], 5.0, "Item"), (4, "S", ["id4"], 1.0, "Item")])


def test_modules_beside_the_file_travel_as_they_were_at_start(travel: Callable[..., str]) -> None:
    source = """
        import helpers
        from parts.sizes import double

        def late(value):
            from parts import later
            import lone.deep
            return later.shift(value) + lone.deep.ONE

        pipeline = (
            Pipeline("x").source(Files("in.ndjson")).shard_by("v").map(helpers.value_of)
            .map(double).map(late).map(helpers.Struct.of).map(lambda s, h=helpers: h.render(s)).sink(Stdout())
        )
    """

    def deploy(folder: Path) -> None:
        for file in folder.rglob("*.py"):
            file.write_text("raise SystemExit('the disk was read')")

    printed = travel(
        source,
        '{"v":1} {"v":"x"}',
        after_packing=deploy,
        **{
            "helpers.py": """
            import msgspec
            class Struct(msgspec.Struct):
                value: int
                @classmethod
                def of(cls, value):
                    return cls(value)
            def value_of(record):
                return record["v"] + 0
            def render(struct):
                return f"{type(struct).__module__} {struct.value}"
            """,
            "parts/__init__.py": "SHIFT = 100",
            "parts/sizes.py": "def double(value):\n    return 2 * value",
            "parts/later.py": "from . import SHIFT\ndef shift(value):\n    return value + SHIFT",
            "lone/deep.py": "ONE = 1",
        },
    )

    assert printed == str(["helpers 103", '1_map: TypeError: can only concatenate str (not "int") to str'])


def test_a_traceback_in_the_worker_shows_the_source_that_was_sent(travel: Callable[..., str]) -> None:
    source = """
        import traceback
        import helpers

        def shown(record):
            try:
                helpers.fail(record)
            except ValueError:
                return [line.strip() for line in traceback.format_exc().splitlines() if "as sent" in line]

        pipeline = Pipeline("x").source(Files("in.ndjson")).shard_by("v").map(shown).sink(Stdout())
    """

    def deploy(folder: Path) -> None:
        (folder / "helpers.py").write_text("# nothing\n# of that kind\n# any more\n")

    printed = travel(
        source,
        '{"v":1}',
        after_packing=deploy,
        **{"helpers.py": "def fail(record):\n    raise ValueError(record)  # as sent"},
    )

    assert printed == str([["raise ValueError(record)  # as sent"]])


def test_what_main_defines_travels_with_the_globals_that_it_uses(tmp_path: Path) -> None:
    parcel = tmp_path / "parcel"
    script = f"""
import msgspec
from pathlib import Path
from headrace import OnError, Pipeline
from headrace.chain import travel
from headrace.sinks import Stdout
from headrace.sources import Files

class Item(msgspec.Struct, frozen=True, tag="item"):
    v: int
    def doubled(self):
        return Item(self.v * 2)

OFFSET = 5
UNUSED_AND_UNABLE_TO_TRAVEL = open(__file__)

def helper(value):
    return value + OFFSET

pipeline = (
    Pipeline("x").source(Files("in.ndjson", decode=Item)).shard_by("v")
    .map(lambda item: item.doubled()).filter(lambda item: isinstance(item, Item)).map(lambda item: helper(item.v))
    .sink(Stdout())
)
built = pipeline.build(on_error=OnError.FAIL)
Path({str(parcel)!r}).write_bytes(travel.pack(None, (built.worker, [])))
UNUSED_AND_UNABLE_TO_TRAVEL.close()
"""
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "body").write_text('{"type":"item","v":1}\n{"type":"item","v":2}\n')

    python(str(tmp_path / "script.py"))
    printed = python("-I", "-c", RUN.format(parcel=str(parcel), body=str(tmp_path / "body")))

    assert printed == "[7, 9]"


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("threading.Lock()", "a lock cannot be given to another process"),
        ("open(__file__)", "a TextIOWrapper cannot be given to another process"),
        ("sqlite3.connect(':memory:')", "cannot pickle 'sqlite3.Connection' object"),
        ("(n for n in range(3))", "cannot pickle 'generator' object"),
        ("queue.Queue()", "a lock cannot be given to another process"),
    ],
)
def test_a_captured_object_that_cannot_travel_is_named_with_its_operator(tmp_path: Path, made: str, named: str) -> None:
    """V01"""
    source = f"""
        import queue, sqlite3, threading
        def using(handle, other=1):
            def inner(record):
                return handle, other
            def write(record):
                return inner(record)
            return write
        pipeline = (
            Pipeline("x").source(Files("in.ndjson")).shard_by("v").map(lambda record: record)
            .map(using({made}), name="save").sink(Stdout())
        )
    """

    told = refusal(tmp_path, source)

    assert "refused: save: the captured variable inner.handle" in told
    assert named in told
    assert "make it inside the function" in told


def test_what_runs_in_the_supervisor_may_hold_what_cannot_travel(travel: Callable[..., str]) -> None:
    source = """
        import threading
        def counting():
            lock, seen = threading.Lock(), []
            def count(record):
                with lock:
                    seen.append(record)
            return count
        pipeline = (
            Pipeline("x").source(Files("in.ndjson", decode=bytes)).inspect(counting()).shard_by(len)
            .map(len).sink(Stdout())
        )
    """

    printed = travel(source, "one three")

    assert printed == str([3, 5])
