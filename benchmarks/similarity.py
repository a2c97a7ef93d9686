"""How similar the training sets of a recipe are to its targets, to put beside a heat map of what helps them.

The direction of a set is the mean of its rows' vectors by the recipe's encoder, before any training; a row's is
half-way between its query and its passage, as for CRISP. Similar are sets whose directions have a high cosine.

    python benchmarks/similarity.py twin-beir7 defaults.path='DATA/english/{name}'
"""

from __future__ import annotations

import argparse

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.functional import normalize

from mixfluence.assembly import build_model, read_rows
from mixfluence.config.files import find_recipe, load_recipe
from mixfluence.config.sources import Source


def direction(model: SentenceTransformer, source: Source, most: int) -> Tensor:
    """Return the mean direction of rows of a set, taken at equal distances."""
    rows: Dataset = read_rows(source).rows
    taken = rows.select(range(0, len(rows), -(-len(rows) // most)))
    queries = model.encode_query(list(taken["anchor"]), convert_to_tensor=True, normalize_embeddings=True)
    passages = model.encode_document(list(taken["positive"]), convert_to_tensor=True, normalize_embeddings=True)
    return normalize(normalize(queries + passages, dim=-1).mean(0), dim=-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="changes of the recipe, as for train")
    parser.add_argument("--rows", type=int, default=500, help="rows of a set that are looked at, at most")
    options = parser.parse_args()
    recipe = load_recipe(find_recipe(options.recipe), options.changes)
    model = build_model(recipe.model)
    train, dev = (
        {name: direction(model, source, options.rows) for name, source in sources.items()}
        for sources in (recipe.train, recipe.dev)
    )
    print("| | " + " | ".join(dev) + " |\n|---|" + "---|" * len(dev))
    cosines = torch.stack(list(train.values())) @ torch.stack(list(dev.values())).T
    for name, row in zip(train, cosines.tolist(), strict=True):
        print(f"| {name} | " + " | ".join(f"{cosine:.2f}" for cosine in row) + " |")


if __name__ == "__main__":
    main()
