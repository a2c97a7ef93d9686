"""A folder with a finished run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.workplace import Case, run_program, write_workplace


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, tiny_bert_folder: Path) -> Path:
    """A folder with a recipe and the run it describes, with a checkpoint after two steps and one after four."""
    folder = tmp_path_factory.mktemp("hostile") / "finished"
    write_workplace(folder, tiny_bert_folder)
    assert run_program(Case("nothing", environment={"MIXFLUENCE_CACHE": str(folder / "cache")}), folder) == 0
    return folder
