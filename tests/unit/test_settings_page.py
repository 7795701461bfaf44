"""The page of settings is what the definitions say, whole and in order."""

from docs.make_settings_page import PAGE, page
from headrace.config.settings import knobs


def test_every_setting_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert [key for key in knobs() if f"| `{key}` |" not in text] == []


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make settings-page`"
