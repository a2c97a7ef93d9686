"""Arguments of the host that are refused when a trainer is set up.

- What the host would refuse when training starts is refused by its name, before a text is tokenised.
- What the host takes is taken: every mode that torch knows, every pattern that a parameter has.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from torch._inductor import list_mode_options

from mixfluence.errors import RecipeError
from mixfluence.training.rehearsal import rehearse
from tests.training.runs import arguments, build


@pytest.mark.parametrize(
    ("argument", "value", "reason"),
    [
        ("auto_find_batch_size", True, "the batch size decides what is drawn"),
        pytest.param(
            "torch_compile_mode", "fast", r"refused by the host \(Unrecognized mode=fast", marks=pytest.mark.slow
        ),
        ("learning_rate_mapping", {"decoder": 0.1}, r"refused by the host \(No parameters found .* 'decoder'"),
        ("learning_rate_mapping", {"(": 0.1}, r"refused by the host \(.*position 0"),
    ],
)
def test_it_is_refused_by_its_name_before_a_text_is_tokenised(
    tiny_bert: SentenceTransformer, tmp_path: Path, argument: str, value: Any, reason: str
) -> None:
    with pytest.raises(RecipeError, match=f"^{argument}: {reason}") as refused:
        build(tiny_bert, arguments(tmp_path, **{argument: value}))
    assert "\n" not in str(refused.value)
    assert not list(Path(os.environ["MIXFLUENCE_CACHE"]).glob("tokens/*"))


def test_one_process_for_several_gpus_is_refused(tiny_bert: SentenceTransformer, tmp_path: Path) -> None:
    args = arguments(tmp_path)
    # Where the host keeps what it counted on the machine.
    args._n_gpu = 4
    assert args.n_gpu == 4
    with pytest.raises(RecipeError, match=r"^4 GPUs are visible to one process.* torchrun --nproc-per-node 4 "):
        build(tiny_bert, args)
    with pytest.raises(RecipeError, match=r"^4 GPUs are visible"):
        rehearse(lambda host: args, {})


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inductor", "INDUCTOR"])
@pytest.mark.parametrize("mode", sorted(list_mode_options()))
def test_every_mode_that_torch_knows_is_taken(
    tiny_bert: SentenceTransformer, tmp_path: Path, mode: str, backend: str
) -> None:
    args = arguments(tmp_path, torch_compile_mode=mode, torch_compile_backend=backend)
    assert build(tiny_bert, args).args.torch_compile_mode == mode


def test_a_pattern_that_parameters_have_trains_them_at_its_rate(
    tiny_bert: SentenceTransformer, tmp_path: Path
) -> None:
    trainer = build(tiny_bert, arguments(tmp_path, learning_rate_mapping={"word_embeddings": 0.5}))
    trainer.train()
    words = tiny_bert[0].auto_model.embeddings.word_embeddings.weight
    of_words = [group for group in trainer.optimizer.param_groups if any(p is words for p in group["params"])]
    assert [group["initial_lr"] for group in of_words] == [0.5]
