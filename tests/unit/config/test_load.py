"""Where a setting's value comes from, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config.interpolate import interpolate
from headrace.config.load import environment_name, load_settings, written
from headrace.config.settings import Kind, Knob, Settings, knobs, value_of
from headrace.config.toml_file import read_toml
from headrace.errors import ConfigError
from headrace.record import OnError

KNOBS = knobs()


def load(**places: Any) -> Settings:
    return load_settings(**{"env": {}, "flags": {}, **places}).settings


def valid_values(knob: Knob) -> st.SearchStrategy[Any]:
    low, high = knob.low or 0, knob.high or 2**40
    if knob.kind is Kind.CHOICE:
        found: st.SearchStrategy[Any] = st.sampled_from(knob.choices)
    elif knob.kind is Kind.TEXT:
        found = st.text("abc:.0123456789", min_size=1, max_size=20)
    elif knob.kind in (Kind.COUNT, Kind.BYTES):
        found = st.integers(int(low), int(high))
    else:
        found = st.floats(low, high, allow_nan=False)
    words = [word for word in (knob.word, "none" if knob.optional else None) if word]
    return st.one_of(found, st.sampled_from(words)) if words else found


any_settings = st.fixed_dictionaries({}, optional={key: valid_values(knob) for key, knob in KNOBS.items()})


@given(any_settings)
@settings(max_examples=60)
def test_settings_survive_being_written_by_every_road(values: dict[str, Any]) -> None:
    made = load(code=values)

    text = written(made)

    assert load(set_flags=text) == made
    assert load(env={environment_name(key): value for key, value in text.items()}) == made
    as_file = {key: value_of(made, key) for key in KNOBS if value_of(made, key) is not None}
    assert load(file=as_file) == made
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Settings) == made


def test_the_defaults_are_those_of_the_reference() -> None:
    defaults = load()

    assert defaults == Settings()
    assert written(defaults)["chunk.target_bytes"] == "256KiB"
    assert written(defaults)["chunk.linger"] == "50ms"
    assert written(defaults)["lease.timeout"] == "5m"
    assert defaults.on_error is OnError.FAIL


def test_a_flag_wins_over_environment_over_file_over_pipeline_over_default() -> None:
    places: list[tuple[str, dict[str, Any]]] = [
        ("pipeline", {"code": {"workers": 2}}),
        ("file", {"file": {"workers": 3}}),
        ("HEADRACE_WORKERS", {"env": {"HEADRACE_WORKERS": "4"}}),
        ("--set", {"set_flags": {"workers": "5"}}),
        ("--workers", {"flags": {"workers": "6"}}),
    ]

    given: dict[str, Any] = {"env": {}, "flags": {}}
    assert load_settings(**given).origins["workers"] == "default"
    for count, (origin, place) in enumerate(places, start=2):
        given |= place
        effective = load_settings(**given)
        assert (effective.settings.workers, effective.origins["workers"]) == (count, origin)


@pytest.mark.parametrize("key", list(KNOBS))
def test_every_key_with_one_letter_changed_is_refused_with_the_right_one(key: str) -> None:
    """X01"""
    for place in range(len(key)):
        if key[place] in "._":
            continue
        wrong = key[:place] + ("q" if key[place] != "q" else "x") + key[place + 1 :]

        with pytest.raises(ConfigError) as refused:
            load(set_flags={wrong: "1"})

        assert f"there is no setting {wrong}; did you mean {key}?" in str(refused.value)


@pytest.mark.parametrize("key", [key for key in KNOBS if "." in key])
def test_a_misspelt_variable_is_refused_with_the_right_one(key: str) -> None:
    """X01"""
    name = environment_name(key)

    with pytest.raises(ConfigError) as refused:
        load(env={name.replace("__", "_"): "1"})

    assert f"did you mean {name}?" in str(refused.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_rows": 5}, "there is no setting max_rows; did you mean batch.max_rows?"),
        ({"lease": {"heartbeat_timeout": "5s"}}, "no setting lease.heartbeat_timeout; did you mean fleet.heart"),
        ({"batch": {"linger": {"ms": 5}}}, "batch.linger is {'ms': 5}; expected a duration"),
        ({"batch": 5}, "batch is 5; expected a table of settings such as batch.max_rows"),
        ({"bach": {"max_rows": 5}}, "there is no setting bach.max_rows; did you mean batch.max_rows?"),
        ({"bach": {}}, "there is no setting bach"),
        ({"batch": {"max_rows": 1}, "batch.max_rows": 2}, "batch.max_rows is written twice"),
    ],
)
def test_a_wrong_level_is_refused_with_the_path(values: dict[str, Any], message: str) -> None:
    """X01"""
    with pytest.raises(ConfigError) as refused:
        load(code=values)

    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("batch.max_rows", "8", "batch.max_rows is '8'; expected a whole number"),
        ("batch.max_rows", True, "batch.max_rows is True; expected a whole number"),
        ("batch.max_rows", 8.0, "expected a whole number"),
        ("batch.max_rows", 0, "the least is 1"),
        ("batch.max_rows", None, "expected a whole number"),
        ("batch.max_bytes", "64MQ", "unknown unit"),
        ("batch.max_bytes", "64M", "write MiB (1024) or MB (1000)"),
        ("batch.max_bytes", 1.5, 'expected a size such as "256KiB"'),
        ("batch.linger", "5", None),
        ("batch.linger", "fast", "not a duration"),
        ("batch.linger", float("nan"), "expected a duration"),
        ("batch.linger", False, "expected a duration"),
        ("backpressure.high", 80, "the most is 1"),
        ("backpressure.high", "0.8", "expected a number"),
        ("workers", "many", 'expected a whole number or "auto"'),
        ("retry.max_attempts", "unlimited", 'expected a whole number or "none"'),
        ("on_error", "ignore", "expected one of fail, skip, dead_letter"),
        ("log.level", "verbose", "expected one of debug, info, warning, error"),
        ("admin.listen", 9464, "expected a text"),
    ],
)
def test_a_wrong_type_is_refused_with_path_value_and_expectation(key: str, value: object, message: str | None) -> None:
    """X01"""
    if message is None:
        load(code={key: value})
        return
    with pytest.raises(ConfigError) as refused:
        load(code={key: value})

    assert key in str(refused.value)
    assert message in str(refused.value)


def test_a_file_names_its_line(tmp_path: Path) -> None:
    """X01"""
    path = tmp_path / "settings.toml"
    path.write_text('workers = 2\n\n[batch] # sizes\nmax_rows = 10\nmax_byte = "1MiB"\n')

    with pytest.raises(ConfigError) as refused:
        load(file=read_toml(path, {}))

    assert f"file {path}, line 5: there is no setting batch.max_byte; did you mean batch.max_bytes?" in str(
        refused.value
    )


def test_a_file_is_an_origin(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text('[batch]\nmax_rows = "${ROWS}"\nlinger = "${LINGER:-1s}"\n')

    effective = load_settings(file=read_toml(path, {"ROWS": "12"}), env={}, flags={})

    assert effective.settings.batch.max_rows == 12
    assert effective.settings.batch.linger == 1.0
    assert effective.origins["batch.max_rows"] == f"file {path}"


@pytest.mark.parametrize("text", ["workers = ", "a = 1\na = 2", "x = \xff", "[" * 3000])
def test_broken_toml_is_refused_with_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(text.encode("latin-1"))

    with pytest.raises(ConfigError, match=r"broken\.toml"):
        read_toml(path, {})


def test_a_pipeline_is_no_config_file(tmp_path: Path) -> None:
    path = tmp_path / "flights.toml"
    path.write_text('[source]\ntype = "files"\n')

    with pytest.raises(ConfigError, match=r"line 1: \[source\] belongs to a pipeline"):
        load(file=read_toml(path, {}))


def test_variables_that_kubernetes_sets_for_a_service_of_our_name_are_no_settings() -> None:
    env = {
        "HEADRACE_SERVICE_HOST": "10.0.0.1",
        "HEADRACE_SERVICE_PORT_HTTP": "9464",
        "HEADRACE_PORT": "tcp://10.0.0.1:9464",
        "HEADRACE_PORT_9464_TCP_ADDR": "10.0.0.1",
        "HEADRACE_STATE": "/var/lib/headrace",
    }

    assert load(env=env) == Settings()


class TestInterpolation:
    ENV: ClassVar = {"HOST": "db", "EMPTY": "", "SECRET": "${HOST}\n[x]"}

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("${HOST}:5432", "db:5432"),
            ("${MISSING:-none}", "none"),
            ("${EMPTY:-none}", "none"),
            ("${EMPTY}", ""),
            ("${MISSING:-}", ""),
            ("$HOST costs $5", "$HOST costs $5"),
            ("$${HOST}", "${HOST}"),
            ("${SECRET}", "${HOST}\n[x]"),
        ],
    )
    def test_a_reference_becomes_its_value(self, text: str, expected: str) -> None:
        assert interpolate({"a": [text]}, self.ENV) == {"a": [expected]}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("${MISSING}", "the environment has no MISSING"),
            ("${MISSING:?set it to the host}", "MISSING: set it to the host"),
            ("${EMPTY:?}", "EMPTY: is not set"),
            ("${HOST", "write \\$\\$\\{"),
            ("${A:-${HOST}}", "write \\$\\$\\{"),
            ("${HOST:+x}", "write \\$\\$\\{"),
        ],
    )
    def test_what_has_no_value_is_refused_with_the_place(self, text: str, message: str) -> None:
        with pytest.raises(ConfigError, match=rf"sinks\.main\.url: .*{message}"):
            interpolate({"sinks": {"main": {"url": text}}}, self.ENV)

    def test_keys_and_other_types_stay(self) -> None:
        values = {"${HOST}": [1, 2.5, True, {"b": None}]}

        assert interpolate(values, self.ENV) == values


@pytest.mark.parametrize("key", [key for key in KNOBS if "timeout" in key or key.endswith("_after")])
def test_every_deadline_says_from_when_until_when_and_what_then(key: str) -> None:
    """H06"""
    doc = KNOBS[key].doc

    assert doc.startswith("From ")
    assert "when this time is over" in doc


def test_the_worker_time_out_says_that_an_idle_worker_is_never_killed_by_it() -> None:
    """H06"""
    assert "idle worker goes on beating and is never killed by it" in KNOBS["fleet.heartbeat_timeout"].doc
