"""The trainers of sentence-transformers with a strategy that decides which dataset the next batch comes from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.training_args import BaseTrainingArguments
from torch import Tensor, nn
from torch.random import fork_rng
from torch.utils.data import DataLoader
from transformers.trainer_utils import TrainOutput

from mixfluence.data.columns import ColumnMap
from mixfluence.data.mixture import Mixture, text_columns, without_overlap
from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import RowSet
from mixfluence.data.tokens import TokenisedRows
from mixfluence.display import largest
from mixfluence.embedding import shape_free_attention
from mixfluence.errors import RecipeError
from mixfluence.files import locked
from mixfluence.runs import TRACE_FILE
from mixfluence.strategies import Strategy
from mixfluence.training import arguments, checkpoints
from mixfluence.training.batches import (
    MixtureRows,
    NumNegatives,
    PlacedLoader,
    chosen_negatives,
    collate,
    negatives_per_row,
    tokenise_all,
)
from mixfluence.training.callback import MixtureCallback, refuse_not_finite
from mixfluence.training.folder import list_mixture
from mixfluence.training.graphs import CudaGraphs, compile_encoder, graph_encoder
from mixfluence.training.losses import GUIDED, check_rows, has_part, info_nce
from mixfluence.training.packing import Packing, learn_packing, preserve_forward
from mixfluence.training.probing import ProbeRunner
from mixfluence.training.sampler import MixtureBatchSampler, batch_sizes, build_sampler, data_seed, probabilities
from mixfluence.training.sharded import ShardedMixin

logger = logging.getLogger(__name__)

# Logs with a value per dataset, and the number of datasets, the most likely ones, kept in the Trainer's history.
PER_DATASET = ("sampling/", "rows_drawn/", "influence/")
MOST_LOGGED = 10


class MixtureMixin(ShardedMixin):
    """What the trainers of all kinds of models share: sampling, probing, trace, checkpoints and exact resume.

    Combined with a trainer of sentence-transformers, as in `MixtureTrainer`, which documents the arguments.

    Attributes:
        kind: The word for the kind of model in recipes.
        can_pack: Whether sequences may be packed.
    """

    kind: ClassVar[str]
    can_pack: ClassVar[bool] = False

    def __init__(
        self,
        model: BaseModel | None = None,
        args: BaseTrainingArguments | None = None,
        train_dataset: Mapping[str, RowSet | Dataset] | None = None,
        dev_dataset: Mapping[str, RowSet | Dataset] | None = None,
        strategy: Strategy | type[Strategy] | str | None = None,
        loss: nn.Module | Callable[[BaseModel], nn.Module] | dict[str, nn.Module] | None = None,
        num_negatives: NumNegatives = None,
        batch_sizes: Mapping[str, int] | None = None,
        packing: bool | None = None,
        compiled: bool = False,
        trace_path: Path | str | None = None,
        test_dataset: Mapping[str, RetrievalSet | RowSet | Dataset] | None = None,
        columns: Mapping[str, ColumnMap] | None = None,
        model_card: bool = True,
        **options: Any,
    ) -> None:
        arguments.check_model(model, self.model_class)
        datasets = arguments.read_datasets(train_dataset, dev_dataset, test_dataset, columns or {})
        self.mixture, self.dev, self.test = datasets
        queries = {name: task.queries for name, task in self.test.items()}
        self.mixture, overlaps = without_overlap(self.mixture, queries, "drop")
        for overlap in overlaps:
            logger.warning("%s: dropped", overlap)
        self.strategy = arguments.build_strategy(strategy).for_targets(self.dev or {})
        arguments.check_dev(self.strategy, self.dev or {}, evaluated=bool(options.get("eval_dataset")))
        arguments.check_loss(loss, self.strategy, model, self.mixture)
        self.strategy.start(self.mixture.sizes)
        self.initial_weights = probabilities(self.strategy, len(self.mixture)).tolist()
        self.num_negatives = num_negatives
        arguments.check_counts("batch_sizes", batch_sizes or {}, self.mixture, least=1)
        self.own_batch_sizes = dict(batch_sizes or {})
        arguments.check_counts("num_negatives", chosen_negatives(num_negatives, self.mixture), self.mixture, least=0)
        self.packing, self.compiled, self.model_card = packing, compiled, model_card
        self.sampler: MixtureBatchSampler
        self.probing: ProbeRunner | None = None
        self.resumed: dict[str, Any] | None = None
        self.seconds_before = 0.0
        if self.dev and "eval_dataset" not in options:
            # A recipe selects checkpoints by other scores.
            warn = trace_path is None and getattr(args, "eval_strategy", "no") != "no"
            options["eval_dataset"] = arguments.evaluated_sets(self.dev, loss, warn=warn)
        super().__init__(model=model, args=args, train_dataset=text_columns(self.mixture), loss=loss, **options)
        arguments.check_arguments(self.args)
        self._check_learning_rates()
        arguments.check_engine(self)
        # A recipe's run folder is written by `experiment`, that of a script by this trainer.
        self.own_folder = None if trace_path else Path(self.args.output_dir)
        self.add_callback(MixtureCallback(self, Path(trace_path or Path(self.args.output_dir) / TRACE_FILE)))

    def train(self, resume_from_checkpoint: Path | str | bool | None = None, **options: Any) -> TrainOutput:
        """Train, or resume exactly where a checkpoint was written.

        `resume_from_checkpoint` is a complete checkpoint, True for the newest complete one, or `"latest"` for the
        newest complete one or step 0 if there is none.
        """
        checkpoint = checkpoints.find_checkpoint(self.args.output_dir, resume_from_checkpoint)
        self.resumed = None
        if checkpoint:
            self.resumed = checkpoints.read_state(checkpoint, self.identity())
            with checkpoints.valid_state(checkpoint):
                self.strategy.load_state_dict(self.resumed["strategy"])
            # It belongs to step 0 and is in the log of the checkpoint.
            self.args.eval_on_start = False
        lock = locked(self.own_folder) if self.own_folder and self.is_world_process_zero() else nullcontext()
        with lock, shape_free_attention(), preserve_forward(self.model):
            return super().train(resume_from_checkpoint=str(checkpoint) if checkpoint else None, **options)

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Evaluate; before the first step without advancing the random state, so that it changes no training."""
        with fork_rng(enabled=self.state.global_step == 0):
            return cast(dict[str, float], super().evaluate(*args, **options))

    def training_step(self, *args: Any, **options: Any) -> Tensor:
        """Train on a batch, and tell its loss to a strategy that learns from it."""
        loss: Tensor = super().training_step(*args, **options)
        if self.strategy.learns_from_loss:
            # The Trainer has divided the loss by the batches of a step.
            own = loss * self.current_gradient_accumulation_steps
            self.strategy.observe(self.sampler.drawn_ahead[0], self.accelerator.reduce(own, "mean").item())
        return loss

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader over the token cache, in the order the strategy decides."""
        tokenised = self.tokenised
        negatives = negatives_per_row(tokenised, self.num_negatives)
        rows = MixtureRows(tokenised, negatives)
        prepare = partial(collate, name_datasets=isinstance(self.loss, dict), packing=self._learn_packing(rows))
        parts = {name: rows.parts for name, rows in self.mixture.items()}
        for name, own in tokenised.items():
            check_rows(self.loss[name] if isinstance(self.loss, dict) else self.loss, name, own, negatives[name])
        self.sampler = build_sampler(self.args, self.strategy, tokenised, self.batch_sizes, negatives, parts)
        if self.dev and self.strategy.probing:
            self.probing = ProbeRunner(self, self._tokenise(self.dev), negatives, prepare)
        if self.resumed:
            with checkpoints.valid_state(self.args.output_dir):
                self.sampler.load_state_dict(self.resumed["sampler"])
                if self.probing:
                    self.probing.load_state_dict(self.resumed["rounds"])
                    self.probing.influence = self.resumed["influence"]
        return PlacedLoader(self.args, rows, self.sampler, prepare)

    def get_data_collator(self, model: BaseModel, args: BaseTrainingArguments, processing_class: Any = None) -> Any:
        """Return a collator that truncates queries and passages of the dev loss as the token cache does."""
        collator = super().get_data_collator(model, args, processing_class)
        collator.router_mapping = args.router_mapping or {"anchor": "query", "positive": "document"}
        return collator

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        if self.model_card:
            super().add_model_card_callback(default_args_dict)

    def get_default_loss(self, model: BaseModel) -> nn.Module:
        return info_nce(model)

    @cached_property
    def tokenised(self) -> dict[str, TokenisedRows]:
        """Token ids of every training dataset, tokenised on first access."""
        return self._tokenise(self.mixture)

    @property
    def batch_sizes(self) -> dict[str, int]:
        """Rows per batch and process that are wanted of each dataset."""
        return dict.fromkeys(self.mixture, self.args.train_batch_size) | self.own_batch_sizes

    def probabilities(self) -> dict[str, float]:
        """Return the probability of each dataset for the next draw."""
        return self._named(self.sampler.probabilities())

    def rows_drawn(self) -> dict[str, int]:
        """Return the rows drawn of each dataset so far."""
        return self._named(self.sampler.rows_drawn)

    def outcome(self) -> dict[str, float] | None:
        """Return the mixture to train on next, for a strategy that looks for one; None for others."""
        found = self.strategy.outcome()
        return None if found is None else self._named(found)

    def describe_datasets(self) -> dict[str, dict[str, Any]]:
        """Return the rows, distinct positives and rows per batch of each dataset."""
        sizes = batch_sizes(self.batch_sizes, self.args.world_size, self.tokenised)
        return {
            name: {"rows": len(rows), "distinct_positives": rows.distinct_positives, "batch_size": sizes[name]}
            for name, rows in self.tokenised.items()
        }

    def identity(self) -> dict[str, Any]:
        """Return what a resumed run must share with its checkpoint; dev sets count only if they guide the strategy."""
        settings = {
            "seed": data_seed(self.args),
            "batch size": self.args.train_batch_size * self.args.world_size,
            "gradient accumulation": self.args.gradient_accumulation_steps,
            "strategy": type(self.strategy).__name__,
            "initial weights": self.initial_weights,
        }
        if self.own_batch_sizes:
            settings["batch sizes"] = {name: own * self.args.world_size for name, own in self.own_batch_sizes.items()}
        guides = self.dev.fingerprints if self.dev and self.strategy.probing else {}
        return {"fingerprints": self.mixture.fingerprints, "dev_fingerprints": guides, "settings": settings}

    def mixture_state(self) -> dict[str, Any]:
        """Return what a checkpoint needs besides the Trainer's state, as JSON values."""
        return {
            "sampler": self.sampler.state_dict(),
            "strategy": self.strategy.state_dict(),
            **self.identity(),
            "rounds": self.probing.state_dict() if self.probing else None,
            "influence": self.probing.influence if self.probing else {},
        }

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add each dataset's probability, rows drawn and last influence to the logs that every tracker gets."""
        if "loss" in logs:
            logs = logs | {f"sampling/{name}": round(p, 6) for name, p in self.probabilities().items()}
            logs |= {f"rows_drawn/{name}": rows for name, rows in self.rows_drawn().items()}
            if self.probing:
                logs |= {f"influence/{name}": value for name, value in self.probing.influence.items()}
                logs["probing/seconds"] = round(self.probing.seconds, 3)
        super().log(logs, start_time)
        # The Trainer keeps every log in memory and in each checkpoint; the trace has all probabilities.
        kept = set(largest(self.probabilities(), MOST_LOGGED)) if "loss" in logs else set()
        history = self.state.log_history[-1]
        for key in [key for key in history if key.startswith(PER_DATASET)]:
            if key.partition("/")[2] not in kept:
                del history[key]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        super().save_model(output_dir, _internal_call)
        if not self.args.should_save or not hasattr(self, "sampler"):
            return
        list_mixture(self, Path(output_dir or self.args.output_dir) / "README.md")

    def _save_checkpoint(self, *args: Any, **options: Any) -> None:
        refuse_not_finite(self)
        with checkpoints.writing(checkpoints.checkpoint_of(self.args.output_dir, self.state.global_step)):
            super()._save_checkpoint(*args, **options)

    def _tokenise(self, datasets: Mixture) -> dict[str, TokenisedRows]:
        return tokenise_all(datasets, self.model, self.args, {*self.mixture, *(self.dev or ())})

    def _learn_packing(self, rows: MixtureRows) -> Packing | None:
        packing = None
        losses = self.loss.values() if isinstance(self.loss, dict) else [self.loss]
        possible = self.can_pack and not any(has_part(loss, *GUIDED) for loss in losses)
        if possible and (self.args.device.type == "cuda" if self.packing is None else self.packing):
            some = rows.batch(0, np.arange(min(4, self.mixture.sizes[next(iter(self.mixture))])))
            packing = learn_packing(self.model, some.columns, some.layouts, self.accelerator.autocast())
        if packing is None and (self.packing or self.compiled):
            option = "packing" if self.packing else "compiled"
            needs = "a dense encoder that supports them and a loss without a guide; the default packs on GPUs only"
            raise RecipeError(f"{option}: packed sequences need {needs}")
        if self.compiled:
            compile_encoder(self.model)
        elif packing and self.args.device.type == "cuda" and not self.args.torch_compile:
            graph_encoder(self.model, CudaGraphs if self.args.world_size == 1 else None)
        return packing

    def _check_learning_rates(self) -> None:
        if not self.args.learning_rate_mapping:
            return
        try:
            self.get_optimizer_cls_and_kwargs(self.args, self.model)
        except Exception as error:  # regular expressions and optimizers raise their own kinds
            raise RecipeError(f"learning_rate_mapping: refused by the trainer library ({error})") from error

    def _named(self, values: NDArray[Any]) -> dict[str, Any]:
        return dict(zip(self.mixture, values.tolist(), strict=True))


class MixtureTrainer(MixtureMixin, SentenceTransformerTrainer):
    """Trains a dense encoder on batches of one dataset at a time, each dataset drawn by a strategy.

    Everything else is as in `SentenceTransformerTrainer`: arguments, losses, callbacks, logging, checkpoints,
    precision, gradient accumulation, PEFT, several processes. Text is tokenised once into a cache instead of at every
    step. Prefer `SentenceTransformerTrainer` for a single dataset. Arguments not listed here are as for
    `SentenceTransformerTrainer`. Other kinds of models have trainers with the same arguments:
    `SparseMixtureTrainer`, `MultiVectorMixtureTrainer` and `RerankerMixtureTrainer`.

    Args:
        args: Training arguments. `prompts` apply to the columns `anchor` and `positive` (which stands for all
            passages), flat or per dataset.
        train_dataset: Name -> dataset. Columns are recognised by their names; see `Mixture`.
        dev_dataset: Dev sets of the same shape. They guide a strategy that asks for probes, and their loss is logged
            whenever the Trainer evaluates.
        test_dataset: Test sets, as retrieval tasks or as pairs. The model is scored on them at the end. Training rows
            whose anchor is one of their queries are dropped, as in recipes.
        strategy: Decides the probabilities: a strategy or its name in recipes; proportional to size if None.
        loss: A loss, or one for each dataset by name; `mixfluence.training.losses.info_nce` if None.
        num_negatives: Hard negatives per row, or by dataset. None uses as many as every row of the dataset has.
        batch_sizes: Rows per batch and process of some datasets by name; others have that of `args`.
        packing: Pack sequences instead of padding them. None does so on a GPU, for models whose embeddings it changes
            by rounding only. In one process, small batches of packed sequences train by CUDA graphs.
        compiled: Compile the transformer for packed sequences, which takes half a minute at the start.
        trace_path: Where to write the trace. None for `trace.jsonl` in the output folder, which then is a run folder
            that `mixfluence status`, `weights`, `report` and `compare` read.
        columns: Columns with other names of training, dev and test sets:
            `{"faq": {"anchor": "title", "positive": "body"}}`.
        model_card: Whether to collect facts about the data for the model's card, which takes a second or more.

    Attributes:
        initial_weights: Probability of each dataset at the start.
        own_folder: The run folder that this trainer describes for the command line; None with a `trace_path`.
        seconds_before: Training time before the checkpoint that the run was resumed from.
    """

    kind = "dense"
    can_pack = True
