"""The page on writing a sampler is true: its blocks, run in order, make a sampler that trains.

- Its weights move, its trace has updates, and the misleading dataset falls behind.
- The page's own test passes, and fails for a sampler that uses more than ranks.
- The sampler resumes from its state exactly.
- A recipe can name it after one line in STRATEGIES, and a wrong setting is an error that names the field.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from mixfluence.errors import RecipeError
from mixfluence.recipe import Recipe
from mixfluence.strategies import STRATEGIES, Strategy

REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / "docs" / "write-a-strategy.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
Names = dict[str, Any]


def save_small_encoder(folder: Path) -> None:
    """Save a static encoder whose vocabulary is the words of the block that has the data."""
    words = sorted(set(re.findall(r"\w+", BLOCKS[1].lower())))
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[UNK]", *words])}, "[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    module = StaticEmbedding(tokenizer, embedding_weights=torch.randn(1 + len(words), 64))
    SentenceTransformer(modules=[module], device="cpu").save(str(folder))


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Names:
    """The names that the page defines, run in a folder of its own with an encoder that needs no download."""
    folder = tmp_path_factory.mktemp("page")
    save_small_encoder(folder / "encoder")
    script = "\n".join(BLOCKS)
    changes = {
        '"sentence-transformers/all-MiniLM-L6-v2"': '"encoder", device="cpu"',
        "learning_rate=2e-5": "learning_rate=0.02, use_cpu=True, report_to=[]",
    }
    for old, new in changes.items():
        assert script.count(old) == 1
        script = script.replace(old, new)
    found: Names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MIXFLUENCE_CACHE", str(folder / "cache"))
        # As in a file of its own: without this module's `from __future__ import annotations`.
        exec(compile(script, "page", "exec", dont_inherit=True), found)
    return found | {"folder": folder}


@pytest.mark.slow
def test_the_page_trains_a_sampler(names: Names) -> None:
    trainer, strategy = names["trainer"], names["strategy"]
    assert isinstance(strategy, Strategy)
    assert trainer.state.global_step == 40
    weights = dict(zip(trainer.mixture, strategy.weights().tolist(), strict=True))
    assert weights["keepers"] > 1 / 3 > weights["mixed-up"]
    trace = (names["folder"] / "out" / "trace.jsonl").read_text(encoding="utf-8").splitlines()
    updates = [line for line in map(json.loads, trace) if "update" in line]
    assert [line["step"] for line in updates] == [10, 20, 30]
    assert updates[-1]["weights"] == pytest.approx(weights)
    assert all(set(line["update"]["influence"]) == set(weights) for line in updates)


@pytest.mark.slow
def test_the_pages_own_test_fails_for_values_instead_of_ranks(names: Names) -> None:
    names["test_only_the_order_of_influences_counts"]()
    ranked: Any = names["Ranked"]

    class ByValue(ranked):
        def update(self, influences: Any) -> dict[str, Any]:
            self._points = 1 + influences.on_targets()[:, 0]
            return {}

    # The page's functions look names up where the page ran.
    scope = names["test_only_the_order_of_influences_counts"].__globals__
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(scope, "Ranked", ByValue)
        with pytest.raises(AssertionError):
            scope["test_only_the_order_of_influences_counts"]()


@pytest.mark.slow
def test_the_pages_sampler_continues_from_its_state(names: Names) -> None:
    rounds = [names["measured"](*values) for values in ((3.0, 1.0, 2.0), (0.0, 0.5, -0.5))]
    whole, first, second = strategies = [names["Ranked"]() for _ in range(3)]
    for strategy in strategies:
        strategy.start({"a": 10, "b": 10, "c": 10})
    for measured in rounds:
        whole.update(measured)
    first.update(rounds[0])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.update(rounds[1])
    assert second.weights().tolist() == whole.weights().tolist()
    # Points 2, 1, 1.5 after the first round, then half the way to 2, 3, 1.
    assert whole.weights() == pytest.approx([2 / 5.25, 2 / 5.25, 1.25 / 5.25])


@pytest.mark.slow
def test_one_line_makes_it_a_word_of_recipes(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "ranked", names["Ranked"])
    source = {"format": "pydocs", "library": "numpy"}
    recipe: dict[str, Any] = {
        "name": "zoo",
        "model": {"name": "wordllama"},
        "train": {"numpy": {**source, "split": "all"}},
        "dev": {"numpy": {**source, "split": "dev"}},
        "training": {"steps": 4, "batch_size": 4},
    }
    assert Recipe.model_validate(recipe | {"strategy": "ranked"}).strategy == names["Ranked"]()
    with pytest.raises(RecipeError, match="update_every"):
        names["Ranked"](update_every=0)


def test_the_page_is_short_and_names_the_contract() -> None:
    assert len(PAGE.splitlines()) < 149
    assert (REPOSITORY / "src" / "mixfluence" / "strategies" / "__init__.py").is_file()
    for method in ("start", "weights", "due", "update"):
        assert f"`{method}(" in PAGE
        assert callable(getattr(Strategy, method))
    assert "`saved`" in PAGE
