"""Says what `flights.py` put into its table, and compares it with a plain count of the sample."""

import gzip
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

SAMPLE = Path(__file__).with_name("data") / "flights-20000.ndjson.gz"


def expected_answers() -> tuple[int, int]:
    """Rows and summed distance of the flights that departed, by a loop without headrace."""
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as lines:
        distances = [flight["distance"] for flight in map(json.loads, lines) if flight["dep_delay"] is not None]
    return len(distances), sum(distances)


def main(database: str) -> int:
    """Prints the answers; exit status 1 if the table differs from the sample."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        rows, miles = db.execute("SELECT count(*), sum(distance) FROM flights").fetchone()
        carriers = db.execute(
            "SELECT carrier, count(*), avg(dep_delay) FROM flights GROUP BY carrier ORDER BY 2 DESC LIMIT 5"
        ).fetchall()
        airports = db.execute("SELECT origin, count(*) FROM flights GROUP BY origin ORDER BY 2 DESC").fetchall()
    expected = expected_answers()
    print(f"\n{database}: {rows:,} flights landed, {miles:,} miles")
    print("  carrier  flights  mean delay")
    for carrier, flights, delay in carriers:
        print(f"  {carrier:7}  {flights:7,}  {delay:6.1f} min")
    print("  from " + " · ".join(f"{origin} {flights:,}" for origin, flights in airports))
    if (rows, miles) != expected:
        print(f"the sample holds {expected[0]:,} such flights and {expected[1]:,} miles: these differ", file=sys.stderr)
        return 1
    print("  the same as a plain loop over the sample counts")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
