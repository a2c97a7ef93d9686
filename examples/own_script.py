"""Train on three datasets in your own script. A dev set decides how often each is drawn.

python examples/own_script.py
python examples/own_script.py --model sentence-transformers/all-MiniLM-L6-v2 --learning-rate 2e-5
"""

from __future__ import annotations

import argparse

from sentence_transformers import SentenceTransformerTrainingArguments
from toy_data import toy_datasets

from mixfluence import InfDDS, MixtureTrainer, info_nce, load_encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="wordllama", help="wordllama, minilm, a folder or a hub id")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--output", default="runs/own-script")
    options = parser.parse_args()

    # Replace with your own data: name -> datasets.Dataset with the columns anchor, positive and any hard negatives.
    train, dev = toy_datasets()
    model = load_encoder(options.model)
    trainer = MixtureTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            options.output,
            max_steps=options.steps,
            per_device_train_batch_size=8,
            learning_rate=options.learning_rate,
            report_to=[],
        ),
        train_dataset=train,
        dev_dataset=dev,
        strategy=InfDDS(update_every=10, warmup_steps=10),
        loss=info_nce(model, temperature=0.05),
    )
    trainer.train()
    model.save(f"{options.output}/model")
    for name, weight in zip(train, trainer.strategy.weights(), strict=True):
        print(f"{name}: {weight:.0%}")


if __name__ == "__main__":
    main()
