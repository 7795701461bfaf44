"""Loading pipelines from Python and TOML files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.config.pipeline_file import LoadedPipeline, PipelineImportError, load_pipeline
from headrace.errors import ConfigError
from headrace.record import OnError

PYTHON = """\
from headrace import Pipeline
from headrace.sinks import Blackhole
from headrace.sources import Files
import beside_flights

pipeline = (
    Pipeline("flights", on_error="skip", settings={"batch": {"max_rows": 10}})
    .source(Files("flights.ndjson"))
    .map(beside_flights.keep)
    .sink(Blackhole())
)
"""
TOML = """\
[pipeline]
name = "flights"
shard_by = "tailnum"
on_error = "dead_letter"

[source]
type = "files"
paths = "${DATA}/flights.ndjson"
decode = "beside_flights:Flight"

[[transform]]
op = "map"
call = "beside_flights:keep"

[sinks.main]
type = "blackhole"

[batch]
max_rows = 10
"""
BESIDE = """\
import msgspec

class Flight(msgspec.Struct):
    tailnum: str

def keep(record):
    return record
"""


@pytest.fixture(autouse=True)
def _clean_imports() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in [name for name in sys.modules if name not in modules and "flights" in name]:
        del sys.modules[name]


def load(folder: Path, text: str, name: str = "my_flights.py") -> LoadedPipeline:
    (folder / "beside_flights.py").write_text(BESIDE)
    (folder / name).write_text(text)
    return load_pipeline(folder / name, {"DATA": "data"})


def test_a_python_file_is_imported_under_its_stem_with_its_folder_first(tmp_path: Path) -> None:
    found = load(tmp_path, PYTHON)

    assert found.pipeline.name == "flights"
    assert found.settings_from_code == {"batch": {"max_rows": 10}, "on_error": OnError.SKIP}
    assert (found.modules_root, found.module_name) == (tmp_path, "my_flights")
    assert sys.modules["my_flights"].pipeline is found.pipeline
    assert sys.path[0] == str(tmp_path)


def test_a_toml_file_says_the_same(tmp_path: Path) -> None:
    found = load(tmp_path, TOML, "flights.toml")

    assert found.pipeline.name == "flights"
    assert list(found.pipeline.sinks) == ["main"]
    assert getattr(found.pipeline.operators[-1].fn, "__name__", None) == "keep"
    assert found.settings_from_code == {"batch": {"max_rows": 10}, "on_error": "dead_letter"}
    assert found.module_name is None
    assert found.modules_root == tmp_path


def test_a_file_that_was_loaded_before_is_loaded_anew(tmp_path: Path) -> None:
    first = load(tmp_path, PYTHON)

    second = load(tmp_path, PYTHON.replace('"flights"', '"other"'))

    assert (first.pipeline.name, second.pipeline.name) == ("flights", "other")


@pytest.mark.parametrize("name", ["json.py", "queue.py", "msgspec.py", "headrace.py", "antigravity.py"])
def test_a_file_that_would_hide_a_module_is_refused(tmp_path: Path, name: str) -> None:
    before = sys.modules.get(name.removesuffix(".py"))

    with pytest.raises(ConfigError, match="give the file another name"):
        load(tmp_path, PYTHON, name)
    assert sys.modules.get(name.removesuffix(".py")) is before


@pytest.mark.parametrize("name", ["a.b.py", "__init__.py", "__main__.py"])
def test_a_file_that_is_no_modules_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="rename the file"):
        load(tmp_path, PYTHON, name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "has no object named `pipeline`; end the file with"),
        (PYTHON.replace("pipeline = (", "flow = ("), "rename `flow`"),
        ("pipeline = 5", "`pipeline` is a int, not a headrace.Pipeline"),
    ],
)
def test_a_file_without_a_pipeline_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text)

    assert message in str(refused.value)
    assert not isinstance(refused.value, PipelineImportError)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f():\n    raise KeyError('x')\nf()\n", "my_flights.py, line 2: KeyError: 'x'"),
        ("import nowhere_to_be_found\n", "line 1: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("def f(:\n", "my_flights.py: SyntaxError"),
        ("raise SystemExit(3)\n", "line 1: SystemExit: 3"),
        (
            "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('y') from e\n",
            "line 4: ValueError: y",
        ),
    ],
)
def test_a_file_that_raises_carries_the_users_traceback_alone(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(PipelineImportError) as refused:
        load(tmp_path, text)

    assert told in str(refused.value)
    trace = refused.value.user_traceback
    assert "my_flights.py" in trace
    assert "pipeline_file.py" not in trace
    assert "importlib" not in trace
    assert "my_flights" not in sys.modules


def test_wrong_use_of_the_builder_names_the_users_line(tmp_path: Path) -> None:
    text = "from headrace.errors import ConfigError\nraise ConfigError('no source; call .source(…)')\n"

    with pytest.raises(ConfigError, match=r"my_flights\.py, line 2: no source; call \.source"):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('type = "files"', 'type = "filez"', "there is no source called 'filez'; did you mean files?"),
        ('type = "files"', "", "source.type is missing"),
        ("paths =", "pathz =", "line 8: there is no source.pathz; did you mean paths?"),
        ("${DATA}", "${NOWHERE}", "source.paths: the environment has no NOWHERE"),
        ("beside_flights:Flight", "beside_flights:Flights", "beside_flights has no Flights; did you mean Flight?"),
        ("beside_flights:Flight", "beside_flightz:Flight", "there is no module beside_flightz"),
        ("beside_flights:Flight", "Flight", "source.decode is 'Flight'; expected \"module:name\""),
        ('op = "map"', 'op = "mop"', "transform[0].op is 'mop'; expected one of map, filter"),
        ('op = "map"', 'op = "map"\nfn = "x"', "there is no transform.fn"),
        ("[[transform]]", "[transform]", "transform must be written as [[transform]]"),
        ('type = "blackhole"', 'type = "blackhole"\nrows = 3', "there is no sinks.main.rows"),
        ("[sinks.main]", '[sinks.other]\ntype = "blackhole"\n[sinks.main]', "several sinks (other, main)"),
        ('name = "flights"', "", "pipeline.name is missing"),
        ('name = "flights"', 'name = "flights"\nworkers = 2', "there is no pipeline.workers"),
        ("[source]", "[sorce]", "has no [source], so it is a --config file"),
    ],
)
def test_a_mistake_in_a_toml_file_is_told_with_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    """X01"""
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, TOML.replace(old, new, 1), "flights.toml")

    assert message in str(refused.value)
    assert "flights.toml" in str(refused.value) or "called" in message
