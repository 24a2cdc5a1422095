"""Files as people leave them: what cannot be read is told with file and line, quickly, and without what it says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.resources import files


def problem_text(path: Path) -> str:
    """Return the message about a file."""
    with pytest.raises(files.FileError) as error:
        files.read(path)
    return str(error.value).replace(str(path), "FILE")


def explosion(levels: int) -> str:
    """Ten times as much on each level, by aliases."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


QUOTES = "a value that begins with {{.VAR}} needs quotes"
MERGES = "\n".join(
    ["a0: &a0 {k: 1}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 9))]
)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a: 1\nb: 2\na: 3\n", "FILE:3: not YAML: a key appears twice, first on line 1"),
        (b"a: {x: 1, x: 2}\nb:\n  y: 1\n  y: 2\n", "\n".join(
            f"FILE:{line}: not YAML: a key appears twice, first on line {first}" for line, first in ((1, 1), (4, 3))
        )),
        (b"a:\n\tb: S3cret\n", "FILE:2: not YAML: column 1: a tab: YAML is indented with spaces"),
        (explosion(9).encode(), "FILE:5: more than 100000 values with its aliases expanded"),
        (MERGES.encode(), "FILE:6: more than 100000 values with its aliases expanded"),
        (b"x: 1\na: &a\n  b: *a\n", "FILE:2: an alias that contains itself"),
        (b"a: &a [*a]", "FILE:1: an alias that contains itself"),
        (b"a: *b", "FILE:1: not YAML: column 4: found undefined alias 'b'"),
        (b"x: y\n" * 2_000_000,
         "FILE: more than 1048576 bytes, which is the limit of a ConfigMap"),
        (b"\x7fELF\x02\x01\x01\x00\n\x00", "FILE:1: not YAML: a character that is not allowed"),
        (b"\x89PNG\r\n\x1a\n", "FILE:1: not UTF-8 text"),
        (b"a: 1\r\nb: 2\rc: \xe2\x28", "FILE:3: not UTF-8 text"),
        ("a: 1\n".encode("utf-16"), "FILE:1: not UTF-8 text"),
        (b"a: 1\nb: \x07\n", "FILE:2: not YAML: a character that is not allowed"),
        (b"1: a\ntrue: b\n2020-01-01: c", "\n".join(
            f"FILE:{line}: YAML reads this key as a number, a date or the like: write it in quotes"
            for line in (1, 2, 3)
        )),
        (b"a: {{.V}}/b", "FILE:1: not YAML: column 10: expected <block end>, but found '<scalar>'; " + QUOTES),
        (b"a: 'S3cret", "FILE:1: not YAML: column 11: found unexpected end of stream"),
    ],
)  # fmt: skip
def test_problem_is_reported_with_its_line(content: bytes, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_bytes(content)
    assert problem_text(file) == problem


def test_directory_symlink_loop_and_missing_file_are_reported(tmp_path: Path) -> None:
    assert problem_text(tmp_path) == "FILE: Is a directory"
    assert problem_text(tmp_path / "gone.yaml") == "FILE: No such file or directory"
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    assert problem_text(tmp_path / "loop.yaml") == "FILE: Too many levels of symbolic links"
    (tmp_path / "data").symlink_to(tmp_path / "version-1")  # as a ConfigMap's mount is while it is replaced
    assert problem_text(tmp_path / "data/tarsy.yaml") == "FILE: No such file or directory"
    assert problem_text(Path("nul\0")) == "FILE: not a valid file name"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_file_without_read_permission_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.touch(mode=0)
    assert problem_text(file) == "FILE: Permission denied"


def test_yaml_documents_and_line_numbers_are_found(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("---\na:\n- x\n- b: {c: 1}\n---\n---\nd: 2\n")
    first, empty, last = files.read(file)
    assert (first.value, empty.value, last.value) == ({"a": ["x", {"b": {"c": 1}}]}, None, {"d": 2})
    lines = {(): 2, ("a",): 2, ("a", 0): 3, ("a", 1, "b", "c"): 4, ("a", 1, "gone", "c"): 4, ("z",): 2, ("a", 7): 2}
    assert {location: first.line(location) for location in lines} == lines
    assert last.line(("d",)) == 7
    assert str(last.problem(("d",), "so it is")) == f"{file}:7: so it is"


def test_merged_mapping_stands_where_it_is_written() -> None:
    (document,) = files.parse("a: &a\n  k: 1\n  l: 2\nb:\n  <<: *a\n  l: 3\n", file="f")
    assert document.value["b"] == {"k": 1, "l": 3}
    assert (document.line(("b", "k")), document.line(("b", "l"))) == (2, 6)


@pytest.mark.parametrize("text", ["a: {{.VAR}}", "a: {{ .VAR }}", "{a: {{.VAR}}}", 'a: "{{.VAR}}"'])
def test_variable_that_is_the_complete_value_needs_no_quotes(text: str) -> None:
    (document,) = files.parse(text, file="f")
    assert document.value == {"a": "{{.VAR}}"}


@pytest.mark.parametrize("text", ["a: {{b}}", "a: {{.b: c}}", "a: {{.b}: c}", "a: {{.b, c}}", "a: {{.b.c}}"])
def test_text_that_is_no_variable_is_a_mapping_that_yaml_refuses(text: str) -> None:
    with pytest.raises(files.FileError, match=r"^f:1: not YAML: column \d+: "):
        files.parse(text, file="f")


PIECES = st.sampled_from(
    ["a", "b", ": ", "\n", "  ", "- ", "[", "]", "{", "}", ", ", "&x ", "*x", "<<: ", "'", '"', "|", ">", "#", "!!int ",
     "!!map ", "!!python/name:os.system ", "---\n", "...\n", "\t", "%YAML 1.1\n", "? ", "{{.V}}", "1", "~", "é", "\x85"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_file_content_is_read_or_reported_with_a_line(text: str) -> None:
    problems: list[files.Problem] = []
    try:
        read = files.parse(text, file="f")
    except files.FileError as error:
        read, problems = [], error.problems
    assert bool(read) != bool(problems)
    assert all(0 < problem.line <= len(text.splitlines()) + 1 for problem in problems)
    assert all("\n" not in str(problem) for problem in problems)
