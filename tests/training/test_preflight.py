"""Arguments that are refused before data is read or tokenised.

- What the Trainer would refuse when training starts is refused by its name, before a text is tokenised.
- A pattern of `learning_rate_mapping` that matches parameters is accepted.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments

from mixfluence.build import dry_run
from mixfluence.errors import RecipeError
from tests.training.runs import arguments, build


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("auto_find_batch_size", True),
        ("save_only_model", True),
        ("ignore_data_skip", True),
        ("dataloader_persistent_workers", True),
        ("learning_rate_mapping", {"decoder": 0.1}),
        ("learning_rate_mapping", {"(": 0.1}),
    ],
)
def test_it_is_refused_by_its_name_before_a_text_is_tokenised(
    tiny_bert: SentenceTransformer, tmp_path: Path, argument: str, value: Any
) -> None:
    with pytest.raises(RecipeError, match=f"^{argument}: ") as refused:
        build(tiny_bert, arguments(tmp_path, **{argument: value}))
    assert "\n" not in str(refused.value)
    assert not list(Path(os.environ["MIXFLUENCE_CACHE"]).glob("tokens/*"))


@pytest.mark.slow
def test_a_dry_run_names_the_argument_without_which_it_would_work(tmp_path: Path) -> None:
    own, right = {"output_dir": str(tmp_path), "use_cpu": True, "report_to": []}, {"adam_beta1": 0.8}
    dry_run(own, right, SentenceTransformerTrainingArguments)
    for name, value in ("torch_compile_mode", "fast"), ("adam_beta2", 7), ("lr_scheduler_type", "steep"):
        with pytest.raises(RecipeError, match=rf"^training\.trainer_args\.{name}: "):
            dry_run(own, {**right, name: value}, SentenceTransformerTrainingArguments)


def test_one_process_for_several_gpus_is_refused(tiny_bert: SentenceTransformer, tmp_path: Path) -> None:
    args = arguments(tmp_path)
    args._n_gpu = 4
    assert args.n_gpu == 4
    with pytest.raises(RecipeError, match=r"^4 GPUs"):
        build(tiny_bert, args)
    with pytest.raises(RecipeError, match=r"^4 GPUs"):
        dry_run({}, {}, lambda **_: args)


def test_a_pattern_that_parameters_have_trains_them_at_its_rate(
    tiny_bert: SentenceTransformer, tmp_path: Path
) -> None:
    trainer = build(tiny_bert, arguments(tmp_path, learning_rate_mapping={"word_embeddings": 0.5}))
    trainer.train()
    words = tiny_bert[0].auto_model.embeddings.word_embeddings.weight
    of_words = [group for group in trainer.optimizer.param_groups if any(p is words for p in group["params"])]
    assert [group["initial_lr"] for group in of_words] == [0.5]
