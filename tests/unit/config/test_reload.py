"""A platform file that changes in all the ways in which files change, by real files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tarsy.config.load import loader, reload
from tarsy.config.model import platforms
from tarsy.llm import credentials
from tarsy.resources import files


def text(iterations: int = 5, *, more: str = "") -> str:
    """A valid file that says so many iterations."""
    return f"defaults: {{max_iterations: {iterations}}}\n{more}"


def watching(path: Path, **environment: str) -> reload.Watch:
    beside: Callable[[platforms.Platform], set[Path]] = lambda loaded: credentials.key_files(loaded, environment)  # noqa: E731
    return reload.Watch(path, environment=environment, other_files=beside)


def iterations(watch: reload.Watch) -> int:
    return watch.loaded.platform.defaults.max_iterations


def settle(watch: reload.Watch) -> bool:
    """Look until nothing moves; whether anything changed."""
    return any([watch.changed(), watch.changed()])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tarsy.yaml"
    path.write_text(text())
    return path


@pytest.fixture
def watch(file: Path) -> reload.Watch:
    return watching(file)


def edited(file: Path, content: str) -> None:
    file.write_text(content)


def renamed(file: Path, content: str) -> None:
    beside = file.with_name("new")
    beside.write_text(content)
    beside.replace(file)


def of_the_same_time(file: Path, content: str) -> None:
    """Edit a file without a change of its length, its time and its inode: only its content is another."""
    before = file.stat()
    file.write_text(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_ino) == (before.st_size, before.st_ino)


@pytest.mark.parametrize("change", [edited, renamed, of_the_same_time])
def test_changed_file_is_loaded_once_it_has_settled(
    file: Path, watch: reload.Watch, change: Callable[[Path, str], None]
) -> None:
    assert not settle(watch)
    change(file, text(7))
    assert (watch.changed(), iterations(watch)) == (False, 5), "at one look only it may be half of it"
    assert (watch.changed(), iterations(watch), watch.problem) == (True, 7, "")
    assert not settle(watch)


def test_a_mounted_config_map_is_seen_to_be_replaced(tmp_path: Path) -> None:
    """As kubelet does it: a folder for each version, a link `..data` to it, and a link for each key."""

    def mount(version: str, content: str) -> None:
        (tmp_path / version).mkdir()
        (tmp_path / version / "tarsy.yaml").write_text(content)
        (tmp_path / "..data_tmp").symlink_to(version)
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")

    mount("..1", text(5))
    (tmp_path / "tarsy.yaml").symlink_to("..data/tarsy.yaml")
    watch = watching(tmp_path / "tarsy.yaml")
    mount("..2", text(7))
    assert settle(watch)
    assert iterations(watch) == 7
    (tmp_path / "..1" / "tarsy.yaml").unlink()
    (tmp_path / "..1").rmdir()
    mount("..3", text(7))
    assert not settle(watch), "it says the same"
    (tmp_path / "..data").unlink()  # which leaves links to nowhere
    assert settle(watch)
    assert watch.problem == f"{tmp_path}/tarsy.yaml: No such file or directory: {PUT_BACK}"
    assert iterations(watch) == 7


PUT_BACK = "put the platform file there, or name another by --config or TARSY_CONFIG"


def to_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


VARIABLE = "limits: {answer: '{{.NOT_SET}}'}\n"
DANGLING = "agents: {A: {llm_provider: nobody}}\n"


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (Path.unlink, f": No such file or directory: {PUT_BACK}"),
        (to_pipe, ": a pipe, which cannot be read again"),
        (lambda file: file.write_text(text(more=VARIABLE)), ":2: limits.answer: the variable NOT_SET is not set"),
        (lambda file: file.write_text(text(more=DANGLING)), ":2: agents.A.llm_provider: unknown provider"),
    ],
    ids=["gone", "pipe", "variable", "dangling"],
)  # fmt: skip
def test_problem_on_reload_is_reported_with_its_line_and_changes_nothing(
    file: Path, watch: reload.Watch, spoil: Callable[[Path], None], problem: str
) -> None:
    before = watch.loaded
    spoil(file)
    assert (watch.changed(), watch.problem) == (False, "")
    assert watch.changed()
    assert watch.problem.startswith(f"{file}{problem}")
    assert watch.loaded is before
    assert not settle(watch), "it is told once"

    file.unlink(missing_ok=True)
    file.write_text(text())
    assert settle(watch)
    assert (watch.problem, watch.loaded) == ("", before)


def test_a_file_that_is_written_to_while_it_is_read_is_not_judged(
    file: Path, watch: reload.Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = files.contents

    def torn(path: Path) -> bytes:
        content = read(path)
        with path.open("a") as writing:
            writing.write("# more\n")
        return content

    file.write_text("")
    with monkeypatch.context() as patch:
        patch.setattr(files, "contents", torn)
        for _ in range(5):
            file.write_text("")
            assert not watch.changed()
    assert iterations(watch) == 5


def test_another_comment_is_no_change(file: Path, watch: reload.Watch) -> None:
    file.write_text(text(more="# nothing\n"))
    assert not settle(watch)


def test_watch_without_a_file_has_nothing_to_look_at() -> None:
    watch = reload.Watch(None, environment={})
    assert not settle(watch)
    assert watch.loaded.platform == loader.platform_file(None)


def test_changed_key_files_cause_a_reload(file: Path, tmp_path: Path) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    provider = "llm_providers: {own: {type: xai, model: m, api_key_file: %s}}\n"
    file.write_text(text(more=provider % key))
    watch = watching(file)
    assert watch.keys == {key: b""}
    key.write_text("one")
    assert (watch.changed(), watch.changed()) == (False, True)
    assert watch.keys[key]
    assert "one" not in str(watch.keys)
    key.write_text("two")
    assert settle(watch)
    file.write_text("broken: [")
    key.write_text("three")
    before = dict(watch.keys)
    assert settle(watch)
    assert watch.problem
    assert watch.keys != before, "a key is seen though the file is broken"
    file.write_text(text(more=provider % other))
    assert settle(watch)
    assert watch.keys == {other: b""}
    key.unlink()
    assert not settle(watch), "nothing names it any more"


class Files(RuleBasedStateMachine):
    """Any sequence of writes, removals and looks: in force is always the last valid content that had settled."""

    contents = st.one_of(
        st.integers(1, 3).map(text),
        st.sampled_from(["", "broken: [", "limits: {answr: 1}", "defaults: {max_iterations: 0}", "\t"]),
    )

    @initialize()
    def begin(self) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.file = Path(self.folder.name) / "tarsy.yaml"
        self.file.write_text(text(1))
        self.watch = watching(self.file)
        self.expected = 1
        self.before: str | None = text(1)
        self.is_wrong = False

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    @property
    def now(self) -> str | None:
        return self.file.read_text() if self.file.is_file() else None

    @rule(content=contents, in_place=st.booleans())
    def write(self, content: str, in_place: bool) -> None:
        (edited if in_place else renamed)(self.file, content)

    @precondition(lambda self: self.now is not None)
    @rule()
    def remove(self) -> None:
        self.file.unlink()

    @rule()
    def check_for_changes(self) -> None:
        state = (self.watch.loaded, self.watch.problem)
        changed = self.watch.changed()
        assert changed == (state != (self.watch.loaded, self.watch.problem))
        now = self.now
        if now == self.before:  # a model of its own: what is the same at two looks is judged
            valid = {text(number): number for number in (1, 2, 3)} | {"": platforms.Defaults().max_iterations}
            self.is_wrong = now not in valid
            self.expected = valid.get(now or "", self.expected) if now is not None else self.expected
        self.before = now

    @invariant()
    def what_is_in_force_is_the_last_that_was_valid(self) -> None:
        if hasattr(self, "watch"):
            assert iterations(self.watch) == self.expected
            assert bool(self.watch.problem) == self.is_wrong


Files.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
test_any_sequence_leaves_the_last_valid_content_in_force = Files.TestCase


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [[[[[[[[[[*a{n - 1}]]]]]]]]]]\n" for n in range(1, 30)),
        "limits: {provider_calls: 0x" + "f" * 5000 + "}\n",
    ],
    ids=["an alias chain", "a number without end"],
)
def test_content_that_would_end_the_process_is_a_problem_of_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tarsy.yaml"
    path.write_text(text)
    with pytest.raises(loader.ConfigError, match=r"tarsy.yaml:\d+: "):
        loader.as_written(path)
