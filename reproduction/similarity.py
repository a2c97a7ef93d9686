"""How similar the training sets of a recipe are to its targets, to put beside a heat map of what helps them.

The direction of a set is the mean of its rows' vectors by the recipe's encoder, before any training; a row's is
half-way between its query and its passage, as for CRISP. Similar are sets whose directions have a high cosine.

    python benchmarks/similarity.py twin-beir7 defaults.path='DATA/english/{name}'
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from mixfluence.assembly import build_model, read_rows
from mixfluence.clustering.embeddings import Embedder
from mixfluence.config.sources import Source
from mixfluence.recipe_yaml import find_recipe, load_recipe


def direction(embedder: Embedder, source: Source, most: int) -> NDArray[np.float32]:
    """Return the mean direction of rows of a set, taken at equal distances."""
    rows = read_rows(source)
    distance = -(-len(rows) // most)
    taken = rows.take(range(0, len(rows), distance), f"{rows.fingerprint}-every-{distance}")
    mean = embedder.vectors(taken).astype(np.float32).mean(axis=0)
    return np.asarray(mean / np.linalg.norm(mean))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="changes of the recipe, as for train")
    parser.add_argument("--rows", type=int, default=500, help="rows of a set that are looked at, at most")
    options = parser.parse_args()
    recipe = load_recipe(find_recipe(options.recipe), options.changes)
    embedder = Embedder(build_model(recipe.model), "both")
    train, dev = (
        {name: direction(embedder, source, options.rows) for name, source in sources.items()}
        for sources in (recipe.train, recipe.dev)
    )
    print("| | " + " | ".join(dev) + " |\n|---|" + "---|" * len(dev))
    for name, own in train.items():
        print(f"| {name} | " + " | ".join(f"{own @ other:.2f}" for other in dev.values()) + " |")


if __name__ == "__main__":
    main()
