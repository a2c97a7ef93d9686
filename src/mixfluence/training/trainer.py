"""`SentenceTransformerTrainer` with a say in which dataset the next batch comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from torch import nn
from torch.utils.data import DataLoader
from transformers import TrainerCallback
from transformers.trainer_utils import TrainOutput

from mixfluence.attention import shape_free_attention
from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import RowSet
from mixfluence.data.tokens import TokenisedRows
from mixfluence.errors import DataError, RecipeError
from mixfluence.influence import relative_rate
from mixfluence.strategies import Static, Strategy
from mixfluence.training.batches import Collator, MixtureRows
from mixfluence.training.card import add_mixture_section
from mixfluence.training.checkpoints import half_written_named, state_understood
from mixfluence.training.compiling import compile_encoder
from mixfluence.training.draws import build_sampler, negatives_per_row
from mixfluence.training.facts import for_card, for_trace, for_trackers
from mixfluence.training.loading import host_columns, open_loader, tokenise_all
from mixfluence.training.packing import Packing, learn_packing, left_as_found
from mixfluence.training.resuming import find_checkpoint, host_files_understood, identity, refuse_other_run
from mixfluence.training.rounds import ProbeRounds
from mixfluence.training.sampler import MixtureBatchSampler
from mixfluence.training.starting import refuse_unstartable
from mixfluence.training.trace import MixtureCallback, describe, read_state

Pool = Mapping[str, RowSet | Dataset]


class MixtureTrainer(SentenceTransformerTrainer):
    """Trains on batches of one dataset at a time, each dataset drawn by a strategy.

    Everything else is the host's: arguments, losses, callbacks, logging, checkpoints, precision, gradient
    accumulation, PEFT, several processes. Text is tokenised once into a cache instead of at every step.
    Use the host's own trainer for a single dataset of labelled pairs, where there is nothing to mix.

    Args:
        model: As for the host.
        args: As for the host. `prompts` are honoured for the columns `anchor` and `positive` (which stands
            for all passages), flat or per dataset.
        train_dataset: The pool: name -> dataset with the columns anchor, positive and any negatives, by
            position.
        dev_dataset: The targets: name -> dataset of the same shape. They guide a strategy that asks for probes,
            and their loss is logged whenever the host evaluates.
        strategy: Decides the probabilities; proportional to size if none is given.
        loss: As for the host; see `mixfluence.training.losses.info_nce`.
        num_negatives: Hard negatives per row. None takes as many as every row of the dataset has.
        packing: Lay texts end to end instead of padding them. None does so where it pays and changes nothing but
            rounding: on a GPU in half precision, for models that allow it.
        compiled: Compile the transformer for packed texts. It takes half a minute at the start and makes small
            encoders up to twice as fast, which pays from some thousand steps on.
        trace_path: Where to write the trace; `trace.jsonl` in the output folder if None.
        callbacks: As for the host.
        **host_options: Anything else the host takes.
    """

    def __init__(
        self,
        model: SentenceTransformer | None = None,
        args: SentenceTransformerTrainingArguments | None = None,
        train_dataset: Pool | None = None,
        dev_dataset: Pool | None = None,
        strategy: Strategy | None = None,
        loss: nn.Module | Callable[[SentenceTransformer], nn.Module] | dict[str, nn.Module] | None = None,
        num_negatives: int | None = None,
        packing: bool | None = None,
        compiled: bool = False,
        trace_path: Path | str | None = None,
        callbacks: list[TrainerCallback] | None = None,
        **host_options: Any,
    ) -> None:
        if train_dataset is None:
            raise DataError("train_dataset: a mixture needs at least one dataset")
        self.mixture = Mixture(train_dataset)
        self.dev = Mixture(dev_dataset) if dev_dataset else None
        self.strategy = strategy or Static()
        if self.strategy.probing and not self.dev:
            raise DataError(f"dev_dataset: {type(self.strategy).__name__} needs at least one dev set to be guided by")
        self.strategy.start(self.mixture.sizes)
        self.num_negatives = num_negatives
        self.packing = packing
        self.compiled = compiled
        self.sampler: MixtureBatchSampler
        self.resumed: dict[str, Any] | None = None
        self._tokenised: dict[str, TokenisedRows] | None = None
        self._rounds: ProbeRounds | None = None
        self._influence: dict[str, float] = {}
        self._probing_seconds = 0.0
        if self.dev and "eval_dataset" not in host_options:
            judged = {name: rows for name, rows in self.dev.items() if not isinstance(loss, dict) or name in loss}
            host_options["eval_dataset"] = host_columns(judged) if judged else None
        super().__init__(
            model=model,
            args=args,
            train_dataset=host_columns(self.mixture),
            loss=loss,
            callbacks=callbacks,
            **host_options,
        )
        # So that the host cuts dev queries and passages where the token cache cuts those of training.
        self.data_collator.router_mapping = self.args.router_mapping or {"anchor": "query", "positive": "document"}
        refuse_unstartable(self)
        path = Path(trace_path) if trace_path else Path(self.args.output_dir) / "trace.jsonl"
        self.add_callback(MixtureCallback(self, path))

    def train(self, resume_from_checkpoint: str | bool | None = None, **host_options: Any) -> TrainOutput:
        """Train, or go on from a checkpoint exactly where it was written.

        Args:
            resume_from_checkpoint: A checkpoint, which must be whole, or True for the newest one that is.
            **host_options: Anything else the host takes.
        """
        checkpoint = find_checkpoint(self.args.output_dir, resume_from_checkpoint)
        with state_understood(checkpoint or self.args.output_dir):
            self.resumed = self._load_state(checkpoint) if checkpoint else None
        with (
            shape_free_attention(),
            left_as_found(self.model),
            half_written_named(self),
            host_files_understood(checkpoint),
        ):
            return super().train(resume_from_checkpoint=str(checkpoint) if checkpoint else None, **host_options)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader over the token cache, in the order the strategy decides."""
        tokenised = self.tokenised
        negatives = negatives_per_row(tokenised, self.num_negatives)
        rows = MixtureRows(tokenised, negatives)
        collate = Collator(isinstance(self.loss, dict), self._learn_packing(rows))
        parts = {name: rows.parts for name, rows in self.mixture.items()}
        self.sampler = build_sampler(self.args, self.strategy, tokenised, negatives, parts)
        if self.dev and self.strategy.probing:
            dev = self._tokenise(self.dev)
            self._rounds = ProbeRounds(self, self.strategy, tokenised, dev, negatives, collate)
        if self.resumed:
            with state_understood(self.args.output_dir):
                self.sampler.load_state_dict(self.resumed["sampler"], skip=not self.args.ignore_data_skip)
                if self._rounds:
                    self._rounds.load_state_dict(self.resumed["rounds"])
        return open_loader(self.args, rows, self.sampler, collate)

    @property
    def tokenised(self) -> dict[str, TokenisedRows]:
        """Token ids of every training dataset, tokenised when first asked for."""
        if self._tokenised is None:
            self._tokenised = self._tokenise(self.mixture)
        return self._tokenised

    @property
    def update_due(self) -> bool:
        """Whether the strategy wants datasets probed now, at the end of a step that is not the last."""
        if self._rounds is None or self.state.global_step >= self.state.max_steps:
            return False
        return self.strategy.due(self.state.global_step, relative_rate(self.optimizer))

    def check_probes(self) -> None:
        """Refuse at the start what would fail at the first round of probes."""
        if self._rounds:
            self._rounds.check_optimizer()

    def update_strategy(self) -> dict[str, Any]:
        """Probe and let the strategy learn from it; return what the trace should say."""
        assert self._rounds is not None
        influences, cost = self._rounds.run()
        self._probing_seconds += cost["seconds"]
        update = cost | describe(influences, self.strategy.update(influences), list(self.mixture))
        self._influence = update.get("influence", {})
        return update

    def probabilities(self) -> dict[str, float]:
        """Return the probability of each dataset for the next draw."""
        return dict(zip(self.mixture, self.sampler.probabilities().tolist(), strict=True))

    def outcome(self) -> dict[str, float] | None:
        """Return the mixture that the strategy would train on next, if it is one that looks for such a mixture."""
        found = self.strategy.outcome()
        return None if found is None else dict(zip(self.mixture, found.tolist(), strict=True))

    def describe_datasets(self) -> dict[str, dict[str, int]]:
        """Return what the trace says of each dataset: its rows, distinct positives and rows per batch."""
        return for_trace(self.args, self.tokenised)

    def mixture_state(self) -> dict[str, Any]:
        """Return what a checkpoint needs beyond the host's: draws, strategy and the data's fingerprints."""
        return {
            "sampler": self.sampler.state_dict(),
            "strategy": self.strategy.state_dict(),
            **self._identity(),
            "rounds": self._rounds.state_dict() if self._rounds else None,
            "influence": self._influence,
        }

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add each dataset's probability, rows drawn and last influence, so that every tracker shows them."""
        if "loss" in logs:
            logs = logs | for_trackers(self.probabilities(), self._rows_drawn(), self._influence)
            if self._rounds:
                logs["probing/seconds"] = round(self._probing_seconds, 3)
        super().log(logs, start_time)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save as the host does, and state the mixture in the model card."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save and hasattr(self, "sampler"):
            folder = Path(output_dir or self.args.output_dir)
            table = for_card(self.mixture.sizes, self.probabilities(), self._rows_drawn())
            add_mixture_section(folder / "README.md", self.strategy, table)

    def _tokenise(self, datasets: Mixture) -> dict[str, TokenisedRows]:
        return tokenise_all(datasets, self.model, self.args, {*self.mixture, *(self.dev or ())})

    def _learn_packing(self, rows: MixtureRows) -> Packing | None:
        wanted = self.args.device.type == "cuda" if self.packing is None else self.packing
        if not wanted:
            if self.compiled:
                raise RecipeError("compiled: only packed texts are compiled for, which a GPU has by default")
            return None
        some = rows.batch(0, np.arange(min(4, len(self.tokenised[next(iter(self.mixture))]))))
        packing = learn_packing(self.model, some.columns, some.layouts, self.accelerator.autocast())
        if packing is None and (self.packing or self.compiled):
            raise RecipeError(f"{'packing' if self.packing else 'compiled'}: this model needs its texts padded")
        if self.compiled:
            compile_encoder(self.model)
        return packing

    def _rows_drawn(self) -> dict[str, int]:
        return dict(zip(self.mixture, self.sampler.rows_drawn.tolist(), strict=True))

    def _load_state(self, checkpoint: Path) -> dict[str, Any]:
        state = read_state(checkpoint)
        refuse_other_run(checkpoint, state, self._identity())
        self.strategy.load_state_dict(state["strategy"])
        self._influence = state["influence"]
        return state

    def _identity(self) -> dict[str, Any]:
        return identity(self.args, self.strategy, self.mixture, self.dev)
