"""Guide sampling by your own metric: the similarity of the right passage minus that of the most similar wrong one.

python examples/custom_metric.py
"""

from __future__ import annotations

import argparse

import torch
from sentence_transformers import SentenceTransformerTrainingArguments
from torch import Tensor, nn
from toy_data import toy_datasets

from mixfluence import InfDDS, Metric, MixtureTrainer, Probe, info_nce, load_encoder
from mixfluence.influence import DevBatch


def margin(model: nn.Module, batch: DevBatch) -> Tensor:
    """Return one value per dev query: the cosine of its passage minus that of the nearest other passage."""
    sides = [[model(dict(piece.columns[i]))["sentence_embedding"] for piece in batch.pieces] for i in (0, 1)]
    queries, passages = (nn.functional.normalize(torch.cat(side).float(), dim=1) for side in sides)
    scores = queries @ passages.T
    others = scores - 2 * torch.eye(len(scores), device=scores.device)  # below any cosine
    return scores.diagonal() - others.max(dim=1).values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="wordllama", help="wordllama, minilm, a folder or a hub id")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--output", default="runs/custom-metric")
    options = parser.parse_args()

    train, dev = toy_datasets()
    model = load_encoder(options.model)
    probe = Probe(metric=Metric(margin, higher_is_better=True))
    trainer = MixtureTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            options.output, max_steps=options.steps, per_device_train_batch_size=8, learning_rate=1e-3, report_to=[]
        ),
        train_dataset=train,
        dev_dataset=dev,
        strategy=InfDDS(update_every=10, warmup_steps=10, probe=probe),
        loss=info_nce(model, temperature=0.05),
    )
    trainer.train()
    for name, weight in zip(train, trainer.strategy.weights(), strict=True):
        print(f"{name}: {weight:.0%}")


if __name__ == "__main__":
    main()
