from __future__ import annotations

from pathlib import Path

import pytest
from tarsy_dev import setup


@pytest.mark.parametrize(("whole", "kept"), [(True, True), (False, False)])
def test_an_environment_that_was_not_finished_is_begun_anew(tmp_path: Path, *, whole: bool, kept: bool) -> None:
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "half").touch()
    if whole:
        (folder / "installed").touch()

    setup.prepare(folder, "--without-pip")
    assert (folder / "bin" / "half").exists() == kept
    assert (folder / "bin" / "python").exists()
    assert not (folder / "installed").exists()


def test_a_folder_that_cannot_be_an_environment_is_named(tmp_path: Path) -> None:
    (tmp_path / "venv").touch()
    with pytest.raises(setup.SetupError, match=r"venv cannot be made an environment:\n.*\S"):
        setup.prepare(tmp_path / "venv")


def test_a_lock_file_tells_how_many_packages_there_are() -> None:
    lock = "aiohttp==3.14.5 \\\n    --hash=sha256:aa==\ncffi==2.1.1 ; platform_python_implementation != 'PyPy' \\\n"
    assert setup.locked(lock) == 2
