"""Write your own sampler: uniform at first, proportional to size at the end.

Its annotated fields are its settings. `docs/write-a-strategy.md` shows a sampler that measures influences.

python examples/custom_strategy.py
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformerTrainingArguments
from toy_data import toy_datasets

from mixfluence import MixtureTrainer, Strategy, info_nce, load_encoder
from mixfluence.schema import Positive


class Fading(Strategy):
    """Draw uniformly at first and in proportion to size at the end.

    Attributes:
        power: When the change happens: 1 is a linear change, larger values change later.
    """

    title = "Fading"
    name: Literal["fading"] = "fading"
    power: Positive = 1.0

    def start(self, sizes: Mapping[str, int]) -> None:
        self._by_size = np.array(list(sizes.values())) / sum(sizes.values())

    def weights(self, progress: float = 0.0) -> NDArray[np.float64]:
        part = progress**self.power
        return np.asarray((1 - part) / len(self._by_size) + part * self._by_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="wordllama", help="wordllama, minilm, a folder or a hub id")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--output", default="runs/custom-strategy")
    options = parser.parse_args()

    train, _ = toy_datasets()
    model, strategy = load_encoder(options.model), Fading(power=2.0)
    arguments = SentenceTransformerTrainingArguments(
        options.output, max_steps=options.steps, per_device_train_batch_size=8, learning_rate=1e-3, report_to=[]
    )
    loss = info_nce(model, temperature=0.05)
    MixtureTrainer(model=model, args=arguments, train_dataset=train, strategy=strategy, loss=loss).train()
    for name, first, last in zip(train, strategy.weights(0.0), strategy.weights(1.0), strict=True):
        print(f"{name}: {first:.0%} at first, {last:.0%} at the end")


if __name__ == "__main__":
    main()
