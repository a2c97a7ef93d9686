"""Prints the similarity of a setting's training sets and targets, to compare with a heat map of what helps them.

The direction of a set is the mean of its rows' vectors by the recipe's encoder before training; the vector of a row is
the mean of its query and its passage, as for CRISP. The similarity is the cosine of two directions.

    python -m reproduction.similarity twin-beir7 --data DATA
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import normalize

import mixfluence
from reproduction.cells import load, move
from reproduction.schema import load_setting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting")
    parser.add_argument("--data", type=Path, help="the folder that recipes call data")
    parser.add_argument("--rows", type=int, default=500, help="rows of a set to encode, at most")
    options = parser.parse_args()
    recipe = move(load(load_setting(options.setting)), options.data)

    encoder: Any = mixfluence.load_encoder(**recipe.model.model_dump())

    def direction(source: mixfluence.SourceSection) -> NDArray[np.float32]:
        rows = mixfluence.read_rows(source).sample(options.rows).rows
        sides = [encoder.encode_query(rows["anchor"]), encoder.encode_document(rows["positive"])]
        mean = normalize(np.sum([normalize(vectors) for vectors in sides], axis=0)).mean(axis=0)
        return np.asarray(mean / np.linalg.norm(mean))

    train = {name: direction(source) for name, source in recipe.train.items()}
    dev = {name: direction(source) for name, source in recipe.dev.items()}
    print("| | " + " | ".join(dev) + " |\n|---|" + "---|" * len(dev))
    for name, own in train.items():
        print(f"| {name} | " + " | ".join(f"{own @ other:.2f}" for other in dev.values()) + " |")


if __name__ == "__main__":
    main()
