"""Records per second of the whole path beside the same job as a hand-written loop, interleaved in one run.

Every figure is of a whole process, its start included; each case is the best of its rounds. The input is the bundled
sample, unpacked and repeated. What is compared is the ratio within one run: absolute figures move with the machine.
"""

import argparse
import gzip
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent
SAMPLE: Final = ROOT / "examples" / "data" / "flights-20000.ndjson.gz"
HEADRACE: Final = Path(sys.executable).with_name("headrace")
WORKERS: Final = 2
SINKS: Final = ("blackhole", "ndjson", "sqlite")


class Case(NamedTuple):
    """One way to do the job: by hand with a library, or by headrace with its decoding somewhere."""

    sink: str
    how: str

    def command(self, source: Path, folder: Path) -> list[str]:
        """The process to time."""
        library = self.how.removesuffix(" loop")
        if library != self.how:
            return [sys.executable, str(HERE / "by_hand.py"), library, self.sink, str(source), str(folder)]
        run = [str(HEADRACE), "run", str(HERE / "bench_flights.py"), "--workers", str(WORKERS)]
        return [*run, "--state", str(folder / "state"), "--json"]

    def environment(self, source: Path) -> dict[str, str]:
        """What the pipeline reads; no settings of headrace that happen to be around."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        decode = self.how.rpartition(" ")[2]
        return {**inherited, "BENCH_INPUT": str(source), "BENCH_SINK": self.sink, "BENCH_DECODE": decode}

    def rows(self, printed: str) -> int:
        """How many rows the process says it wrote."""
        last: int | dict[str, int] = json.loads(printed.splitlines()[-1])
        return last if isinstance(last, int) else last["rows_written"]


HANDS: Final = ("json loop", "msgspec loop")
HOWS: Final = (*HANDS, "headrace, decode in supervisor", "headrace, decode in workers")


def timed(case: Case, source: Path, expected: int, scratch: Path) -> float:
    """Seconds of one run in a new folder. Raises RuntimeError when it fails or its rows are not the expected ones."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    (folder / "out").mkdir()
    began = time.perf_counter()
    ran = subprocess.run(
        case.command(source, folder),
        cwd=folder,
        env=case.environment(source),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    seconds = time.perf_counter() - began
    shutil.rmtree(folder)
    if ran.returncode != 0 or case.rows(ran.stdout) != expected:
        raise RuntimeError(f"{case}: exit {ran.returncode}, expected {expected} rows\n{ran.stdout}\n{ran.stderr}")
    return seconds


def make_input(repeats: int, folder: Path) -> tuple[Path, int, int]:
    """The sample ``repeats`` times in one file: its path, its records, and the rows that the job makes of them."""
    text = gzip.decompress(SAMPLE.read_bytes())
    source = folder / "flights.ndjson"
    with source.open("wb") as out:
        for _ in range(repeats):
            out.write(text)
    departed = sum(json.loads(line)["dep_delay"] is not None for line in text.splitlines())
    return source, repeats * text.count(b"\n"), repeats * departed


def measure(sinks: tuple[str, ...], repeats: int, rounds: int, scratch: Path) -> Iterator[dict[str, object]]:
    """The best time of each case, the cases taking turns."""
    source, records, expected = make_input(repeats, scratch)
    for sink in sinks:
        cases = [Case(sink, how) for how in HOWS]
        times: dict[Case, list[float]] = {case: [] for case in cases}
        for _ in range(rounds):
            for case in cases:
                times[case].append(timed(case, source, expected, scratch))
        best = {case.how: min(found) for case, found in times.items()}
        for how, seconds in best.items():
            yield {
                "sink": sink,
                "how": how,
                "seconds": round(seconds, 3),
                "records_per_second": round(records / seconds),
                **{f"times the {hand}": round(best[hand] / seconds, 2) for hand in HANDS},
            }


def print_table(results: list[dict[str, object]]) -> None:
    """The results for people."""
    print(f"{'sink':10} {'how':31} {'seconds':>8} {'records/s':>10} {'× json':>7} {'× msgspec':>9}")
    for one in results:
        seconds, rate, by_json, by_msgspec = list(one.values())[2:]
        print(f"{one['sink']:10} {one['how']:31} {seconds:8.2f} {rate:10,} {by_json:7.2f} {by_msgspec:9.2f}")


def main() -> None:
    """Measure, print, and keep the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="100,000 records once, not 500,000 thrice")
    parser.add_argument("--sinks", nargs="+", choices=SINKS, default=SINKS)
    parser.add_argument("--result", type=Path, default=ROOT / ".bench" / "path.json")
    given = parser.parse_args()
    repeats, rounds = (5, 1) if given.quick else (25, 3)
    given.result.parent.mkdir(exist_ok=True)
    machine = {"python": platform.python_version(), "cpus": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    print(f"{repeats * 20_000:,} flights, {WORKERS} workers, best of {rounds}, whole processes; {machine}")
    with tempfile.TemporaryDirectory(dir=given.result.parent) as scratch:
        results = list(measure(tuple(given.sinks), repeats, rounds, Path(scratch)))
    print_table(results)
    report = {"records": repeats * 20_000, "workers": WORKERS, "rounds": rounds, "machine": machine, "results": results}
    given.result.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"result: {given.result}")


if __name__ == "__main__":
    main()
