"""Which checkpoint a run goes on from, and whether it is one of that run.

- One that is named must be whole; of several the newest that is whole is taken; without any there is an error.
- A checkpoint of other data, other settings or another strategy is refused in one line that says what differs.
- Dev sets are part of a run only if they guide it.
- Files of the host's that cannot be unpickled become one error, and no other error is changed.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import Row
from mixfluence.errors import DataError
from mixfluence.policy import UNIFORM
from mixfluence.strategies import InfDDS, Static, Strategy
from mixfluence.training.checkpoints import seal
from mixfluence.training.resuming import find_checkpoint, host_files_understood, identity, refuse_other_run
from tests.conftest import row_set
from tests.training.runs import arguments

GUIDED = InfDDS(init=UNIFORM, update_every=5)


def checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    (path / "trainer_state.json").write_text('{"best_model_checkpoint": null}', encoding="utf-8")
    seal(path)
    return path


def mixture(**texts: str) -> Mixture:
    return Mixture({name: row_set(Row(text, f"answer to {text}")) for name, text in texts.items()})


def same(folder: Path, strategy: Strategy = GUIDED, dev: Mixture | None = None, **options: Any) -> dict[str, Any]:
    """The identity of a run of two datasets."""
    return identity(arguments(folder, **options), strategy, mixture(near="a", far="b"), dev or mixture(aim="c"))


def test_the_newest_whole_checkpoint_is_found(tmp_path: Path) -> None:
    old, new = checkpoint(tmp_path, 6), checkpoint(tmp_path, 12)
    assert find_checkpoint(tmp_path, True) == new
    (new / "trainer_state.json").write_text("{}", encoding="utf-8")
    assert find_checkpoint(tmp_path, True) == old
    assert find_checkpoint(tmp_path, str(old)) == old
    with pytest.raises(DataError, match=r"checkpoint-12: .* trainer_state\.json is not as it was written"):
        find_checkpoint(tmp_path, str(new))


def test_there_must_be_one_only_if_it_is_asked_for(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path, None) is None
    assert find_checkpoint(tmp_path, False) is None
    with pytest.raises(DataError, match="no checkpoint to resume from"):
        find_checkpoint(tmp_path, True)


def test_what_differs_is_said(tmp_path: Path) -> None:
    now, here = same(tmp_path), Path("checkpoint-6")
    refuse_other_run(here, same(tmp_path), now)
    args = arguments(tmp_path)
    for saved, difference in [
        (same(tmp_path, seed=7), "written with seed 7, cannot go on with 42"),
        (same(tmp_path, per_device_train_batch_size=8), "written with batch size 8, cannot go on with 4"),
        (
            now | {"settings": {**now["settings"], "strategy": "Aioli"}},
            "with strategy Aioli, cannot go on with InfDDS",
        ),
        (same(tmp_path, dev=mixture(goal="c")), "guided by goal, the dev sets are aim"),
        (same(tmp_path, dev=mixture(aim="d")), "the dataset 'aim' has changed since it was written"),
        (identity(args, GUIDED, mixture(near="a"), mixture(aim="c")), "trained on near, the mixture is near, far"),
        (identity(args, GUIDED, mixture(near="a", far="x"), mixture(aim="c")), "the dataset 'far' has changed"),
    ]:
        with pytest.raises(DataError, match=f"^checkpoint-6: .*{difference}"):
            refuse_other_run(here, saved, now)


def test_dev_sets_that_guide_nothing_may_change(tmp_path: Path) -> None:
    one, other = (same(tmp_path, Static(), dev=mixture(**{name: "c"})) for name in ("aim", "goal"))
    assert one == other


@pytest.mark.parametrize("broken", [b"", b"\x80\x04nonsense"])
def test_a_file_that_cannot_be_unpickled_is_one_error(broken: bytes) -> None:
    refused = pytest.raises(DataError, match=r"^checkpoint-6: not a checkpoint of the host's")
    with refused, host_files_understood(Path("checkpoint-6")):
        pickle.loads(broken)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(ZeroDivisionError), host_files_understood(None):
        _ = 1 / 0
