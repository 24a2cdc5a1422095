"""The names in the documentation exist: modules, functions, files, links; and all rooms are in the table of rooms."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "operator" / "tarsy"
ROOMS = {module.name for module in pkgutil.iter_modules([str(PACKAGE)])}
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OF_CODE = ("CONTRIBUTING.md", "decisions.md")
"""The pages for people who change the code. Elsewhere `api.burst` is a key of the platform file."""
NAME = re.compile(r"`(?:tarsy\.)?([a-z_]+(?:\.\w+)+)`")
TEST = re.compile(r"`((?:unit|store|world|cluster|e2e|web|nightly)/[\w/]+\.py)`")
REAL_PARTS = ("cluster", "e2e", "web")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def names() -> list[str]:
    pages = [path.read_text(encoding="utf-8") for path in PAGES if path.name in OF_CODE]
    return sorted({name for page in pages for name in NAME.findall(page) if name.split(".")[0] in ROOMS})


def exists(name: str) -> bool:
    """Whether the product has a module, or something in a module, with this name."""
    parts = name.split(".")
    path = PACKAGE
    while parts and (path / parts[0]).is_dir():
        path = path / parts.pop(0)
    if parts and (path / f"{parts[0]}.py").is_file():
        path = path / parts.pop(0)
    if not parts:
        return True
    value: object = importlib.import_module(".".join(("tarsy", *path.relative_to(PACKAGE).parts)))
    for part in parts:
        value = getattr(value, part, None)
    return value is not None


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", names())
def test_a_name_of_the_code_exists(name: str) -> None:
    assert exists(name)


def test_the_tests_that_the_decisions_name_exist() -> None:
    named = TEST.findall((ROOT / "docs" / "decisions.md").read_text(encoding="utf-8"))

    assert named
    assert [path for path in named if not (ROOT / "tests" / path).is_file()] == []


def test_each_file_on_real_parts_stands_in_the_table_of_promises() -> None:
    tests = ROOT / "tests"
    files = {f"{path.parent.name}/{path.name}" for tier in REAL_PARTS for path in (tests / tier).glob("test_*.py")}
    assert set(TEST.findall((tests / "README.md").read_text(encoding="utf-8"))) == files


def test_every_room_is_in_the_table_of_rooms() -> None:
    _, _, table = CONTRIBUTING.partition("| Room | Purpose |")
    rows = table.strip().split("\n\n")[0].splitlines()
    named = {room for row in rows for room in re.findall(r"`(\w+)`", row.split("|")[1])}

    assert named == ROOMS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"
