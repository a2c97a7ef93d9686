"""Datasets on their way to the host: tokenised for all steps to come, then read batch by batch."""

from __future__ import annotations

from collections.abc import Container, Mapping

from datasets import DatasetDict
from rich.console import Console
from rich.progress import Progress
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments

from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import RowSet
from mixfluence.data.tokenize import Tokeniser, tokenise
from mixfluence.data.tokens import TokenisedRows
from mixfluence.training.batches import Collator, MixtureRows, PlacedLoader
from mixfluence.training.draws import prompts_of
from mixfluence.training.sampler import MixtureBatchSampler


def tokenise_all(
    datasets: Mixture, model: SentenceTransformer, args: SentenceTransformerTrainingArguments, names: Container[str]
) -> dict[str, TokenisedRows]:
    """Return the token ids of every dataset, from the cache where it has them, and show how far it is.

    Args:
        datasets: What to tokenise.
        model: Whose tokenizer.
        args: The host's, with its prompts.
        names: All datasets that prompts may be for.
    """
    tokeniser = Tokeniser(model)
    console = Console(stderr=True)
    # Processes need not wait for each other here, which the host would allow for half an hour: the cache sees to it.
    silent = args.disable_tqdm or not console.is_terminal or args.local_process_index > 0
    with Progress(console=console, transient=True, disable=silent) as progress:
        wholes = {whole.fingerprint: len(whole) for rows in datasets.values() for whole in rows.wholes}
        bar = progress.add_task("tokenising", total=sum(wholes.values()))
        return {
            name: tokenise(rows, tokeniser, prompts_of(args, name, names), lambda count: progress.advance(bar, count))
            for name, rows in datasets.items()
        }


def host_columns(mixture: Mapping[str, RowSet]) -> DatasetDict:
    """Return the mixture as the host wants to see it, for its model card and its evaluation loss."""
    return DatasetDict({name: rows.rows.select_columns(["anchor", "positive"]) for name, rows in mixture.items()})


def open_loader(
    args: SentenceTransformerTrainingArguments, rows: MixtureRows, sampler: MixtureBatchSampler, collate: Collator
) -> PlacedLoader:
    """Return a loader of the batches that a sampler decides on.

    Not to be handed to accelerate: the sampler gives each process its share itself, and accelerate would read one
    batch ahead, which delays new weights by a step.

    Args:
        args: The host's.
        rows: What is drawn from.
        sampler: Decides which rows come next.
        collate: Makes model inputs of rows.
    """
    return PlacedLoader(
        rows,
        device=args.device,
        batch_sampler=sampler,
        collate_fn=collate,
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory and args.device.type != "cpu",
        persistent_workers=args.dataloader_persistent_workers,
        prefetch_factor=args.dataloader_prefetch_factor,
    )
