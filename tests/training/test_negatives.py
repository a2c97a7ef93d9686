"""How many hard negatives rows have in a batch, where lists are of different lengths.

- Training takes the number it is given or else as many as every row has, and says so if some have more.
- A dev row without negatives does not take them from the other rows; a dev set without any is judged without.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from mixfluence.data.rows import Row, RowSet
from mixfluence.data.tokenize import Prompts, Tokeniser, tokenise
from mixfluence.data.tokens import TokenisedRows
from mixfluence.influence import DevBatch, Metric, Probe
from mixfluence.influence.metrics import info_nce_metric
from mixfluence.policy import UNIFORM
from mixfluence.strategies import InfDDS
from mixfluence.training.draws import dev_negatives_per_row, negatives_per_row
from tests.conftest import row_set
from tests.training.test_inf_dds import EVERY_STEP, small_run

MakeModel = Callable[[], SentenceTransformer]


def rows(*negatives: int) -> RowSet:
    """One row for each number of negatives."""
    return row_set(
        *(Row(f"w{i}", f"w{i + 20}", [f"w{i + 40 + j}" for j in range(many)]) for i, many in enumerate(negatives))
    )


def tokenised(model: SentenceTransformer) -> dict[str, TokenisedRows]:
    sets = {"even": rows(2, 2, 2), "uneven": rows(3, 0, 1), "none": rows(0, 0)}
    return {name: tokenise(found, Tokeniser(model), Prompts()) for name, found in sets.items()}


def test_training_says_when_a_short_list_decides(make_static: MakeModel, caplog: pytest.LogCaptureFixture) -> None:
    datasets = tokenised(make_static())
    assert negatives_per_row(datasets, 5) == {"even": 5, "uneven": 5, "none": 5}
    assert caplog.messages == []
    assert negatives_per_row(datasets, None) == {"even": 2, "uneven": 0, "none": 0}
    assert caplog.messages == ["uneven: rows have 0 to 3 hard negatives; 0 are used"]


def test_a_dev_row_without_negatives_does_not_decide_for_all(make_static: MakeModel) -> None:
    datasets = tokenised(make_static())
    for none_in_particular in (None, 0):
        assert dev_negatives_per_row(datasets, none_in_particular) == {"even": 2, "uneven": 3, "none": 0}
    assert dev_negatives_per_row(datasets, 2) == {"even": 2, "uneven": 2, "none": 0}


@pytest.mark.slow
@pytest.mark.parametrize(("hard_negatives", "columns"), [(True, {4}), (False, {1})])
def test_a_run_is_judged_with_them(
    make_static: MakeModel, tmp_path: Path, hard_negatives: bool, columns: set[int]
) -> None:
    seen: set[int] = set()

    def values(model: nn.Module, batch: DevBatch) -> Tensor:
        seen.update(len(piece.columns) - 1 for piece in batch.pieces)
        return info_nce_metric(0.1).values(model, batch)

    probe = Probe(metric=Metric(values, higher_is_better=False, hard_negatives=hard_negatives))
    dev = {"dev": rows(*[3, 0, 1] * 3)}
    small_run(make_static(), tmp_path, InfDDS(UNIFORM, **EVERY_STEP, probe=probe), dev_dataset=dev)
    assert seen == columns
