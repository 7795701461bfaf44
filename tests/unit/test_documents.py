"""The documents name only files and functions that exist, and the page of invariants every number that is cited."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "INVARIANTS.md"


@pytest.fixture
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_the_invariants_are_numbered_without_a_gap(page: str) -> None:
    numbers = [int(number) for number in re.findall(r"^## HR-(\d+)$", page, re.MULTILINE)]

    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 21


@pytest.mark.parametrize("document", [PAGE, ROOT / "docs" / "one-record.md"], ids=lambda path: path.name)
def test_every_file_and_function_that_a_document_names_exists(document: Path) -> None:
    named = re.findall(
        r"`((?:runtime|workers|tests|examples)/[\w/]+\.py)(?:::(\w+))?[`,]", document.read_text(encoding="utf-8")
    )

    missing = [f"{path}::{function}" for path, function in named if not _exists(path, function)]

    assert named
    assert missing == []


def test_every_number_that_is_cited_is_on_the_page(page: str) -> None:
    cited = set(_cited())

    assert cited
    assert [number for number in sorted(cited) if f"## HR-{number}\n" not in page] == []


def _exists(path: str, function: str) -> bool:
    file = ROOT / path
    return file.is_file() and (not function or f"def {function}(" in file.read_text(encoding="utf-8"))


def _cited() -> Iterator[int]:
    for root in ("runtime", "workers", "tests"):
        for file in (ROOT / root).rglob("*.py"):
            yield from map(int, re.findall(r"\bHR-(\d+)\b", file.read_text(encoding="utf-8")))
