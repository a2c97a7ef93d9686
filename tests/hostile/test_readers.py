"""Whatever a file holds, a reader returns what it means or raises one of our own errors.

- Recipes: any text, any tree of values as YAML, and any change on the command line.
- JSON lines, tables and Parquet, plain and gzipped, whole and with bytes changed; files of judgements and of weights.
- What was written well is read as it was written.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mixfluence.data.beir import read_grades
from mixfluence.errors import MixfluenceError, RecipeError
from mixfluence.evaluation.results import read_dev_queries, read_evaluation
from mixfluence.policy.initial import read_weights
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import load_recipe
from mixfluence.runs import read_record, read_trace
from tests.data.readers import read_pairs
from tests.hostile.workplace import RECIPE

pytestmark = pytest.mark.slow

# A reader that takes seconds for a small file hangs on a large one.
quickly = settings(
    deadline=timedelta(seconds=5), max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["w1", "near", "{name}"]),
)
values = st.recursive(
    scalars,
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(st.text(max_size=8), parts, max_size=4),
    max_leaves=12,
)
RECIPE_KEYS = ["name", "seed", "model", "defaults", "train", "dev", "test", "overlap", "strategy", "training"]
RECIPE_KEYS += ["selection", "evaluation", "output", "extends"]
STRATEGIES = ["static", "inf-dds", "cooldown", "multidds", "doge", "doremi", "crisp", "tdro", "aioli", "replay"]
sections = values | st.fixed_dictionaries(
    {"name": st.sampled_from(STRATEGIES)},
    optional={key: values for key in ("init", "probe", "rule", "reptile", "preset", "floor", "alignment")},
)
recipes = st.dictionaries(st.sampled_from(RECIPE_KEYS), sections, max_size=8)
changes = st.lists(
    st.builds(
        "{}={}".format,
        st.sampled_from(
            ["seed", "training.steps", "train", "strategy.init", "strategy.probe.metric", "", "a..b", "dev.x.y"]
        ),
        st.text(max_size=20) | values.map(str),
    ),
    max_size=3,
)
records = st.one_of(
    values,
    st.lists(st.text(max_size=10), max_size=4),
    st.dictionaries(
        st.sampled_from(["query", "pos", "neg", "pos_scores", "neg_scores", "set", "a", "b"]), values, max_size=5
    ),
)
# Where to change bytes, and into what.
damage = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=5)
Reader = Callable[[Path], object]


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("any")
    monkeypatch.chdir(folder)
    return folder


def write(path: Path, content: bytes, changed: list[tuple[int, int]]) -> Path:
    """Write a file with some of its bytes changed; under a new name, because readers know files they have read."""
    altered = bytearray(content)
    for position, byte in changed:
        if altered:
            altered[position % len(altered)] = byte
    number = len(list(path.parent.iterdir()))
    file = path.with_name(f"{number}{path.name}")
    file.write_bytes(altered)
    return file


@contextmanager
def our_errors_only(path: Path | None = None) -> Iterator[None]:
    """Let our errors pass, if each is one line and names the file; any other fails the test."""
    try:
        yield
    except MixfluenceError as error:
        message = str(error)
    else:
        return
    lines = message.split("\n")
    assert len(lines) == 1 or all(re.match(r"\S+\.yaml:\d+: ", line) for line in lines)
    assert path is None or path.name in message


@quickly
@given(text=st.text(max_size=300) | recipes.map(lambda data: yaml.safe_dump(data, allow_unicode=True)))
def test_any_text_is_a_recipe_or_an_error(text: str, place: Path) -> None:
    path = place / "recipe.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with our_errors_only():
        assert isinstance(load_recipe(path), Recipe)


@quickly
@given(content=st.binary(max_size=200), changed=damage)
def test_any_bytes_are_a_recipe_or_an_error(content: bytes, changed: list[tuple[int, int]], place: Path) -> None:
    for file in (write(place / "any.yaml", content, []), write(place / "near.yaml", RECIPE.encode(), changed)):
        with our_errors_only():
            assert isinstance(load_recipe(file, files_may_be_missing=True), Recipe)


@quickly
@given(overrides=changes)
def test_any_change_is_made_or_an_error(overrides: list[str], place: Path) -> None:
    (place / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    with our_errors_only():
        assert isinstance(load_recipe(place / "recipe.yaml", overrides, files_may_be_missing=True), Recipe)


def json_lines(data: list[Any]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in data).encode()


@quickly
@given(data=st.lists(records, max_size=5), changed=damage, packed=st.booleans(), late=st.booleans())
def test_any_json_lines_are_rows_or_an_error(
    data: list[Any], changed: list[tuple[int, int]], packed: bool, late: bool, place: Path
) -> None:
    content = json_lines(data)
    if packed and late:  # damage the archive, or what is in it
        file = write(place / ".jsonl.gz", gzip.compress(content), changed)
    elif packed:
        damaged = write(place / "plain", content, changed).read_bytes()
        file = write(place / ".jsonl.gz", gzip.compress(damaged), [])
    else:
        file = write(place / ".jsonl", content, changed)
    with our_errors_only(file):
        assert len(read_pairs(file)) > 0


@quickly
@given(content=st.text(alphabet='ab"\t,\n\r\0 é', max_size=100).map(str.encode) | st.binary(max_size=100))
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".csv.gz"])
def test_any_table_is_rows_or_an_error(content: bytes, ending: str, place: Path) -> None:
    file = write(place / ending, gzip.compress(content) if ending.endswith(".gz") else content, [])
    with our_errors_only(file):
        assert len(read_pairs(file)) > 0


@quickly
@given(
    rows=st.lists(st.tuples(st.text(max_size=5) | st.none(), st.text(max_size=5), st.floats()), max_size=5),
    changed=damage,
)
def test_any_parquet_is_rows_or_an_error(rows: list[Any], changed: list[tuple[int, int]], place: Path) -> None:
    columns = {name: [row[number] for row in rows] for number, name in enumerate(("query", "pos", "label"))}
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    file = write(place / ".parquet", sink.getvalue(), changed)
    with our_errors_only(file):
        assert len(read_pairs(file)) > 0


@quickly
@given(
    lines=st.lists(st.lists(st.text(alphabet='q1d\t"-.e9nainf é', max_size=8), max_size=5).map("\t".join), max_size=5),
    changed=damage,
)
def test_any_judgements_are_grades_or_an_error(lines: list[str], changed: list[tuple[int, int]], place: Path) -> None:
    file = write(place / ".tsv", "\n".join(lines).encode(), changed)
    with our_errors_only(file):
        assert all(isinstance(grade, int) for grade in read_grades([file]).values())


@quickly
@given(data=values, changed=damage)
@pytest.mark.parametrize(
    "read", [read_weights, read_evaluation, read_dev_queries, read_trace, read_record], ids=lambda read: read.__name__
)
def test_any_file_of_a_run_is_read_or_an_error(
    read: Reader, data: Any, changed: list[tuple[int, int]], place: Path
) -> None:
    file = write(place / ".jsonl", json_lines([data]), changed)
    with our_errors_only(file):
        assert read(file) is not None


@quickly
@given(
    texts=st.lists(
        st.tuples(*[st.text(st.characters(codec="utf-8"), min_size=1, max_size=9)] * 2), min_size=1, max_size=5
    )
)
@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_what_was_written_is_read(texts: list[tuple[str, str]], ending: str, place: Path) -> None:
    good = [pair for pair in texts if pair[0].strip() and pair[1].strip()] or [("a", "b")]
    content = json_lines([list(pair) for pair in good])
    file = write(place / ending, gzip.compress(content) if ending.endswith(".gz") else content, [])
    rows = read_pairs(file).rows
    assert list(zip(rows["anchor"], rows["positive"], strict=True)) == good


def test_a_recipe_may_use_a_list_twice(place: Path) -> None:
    path = place / "recipe.yaml"
    path.write_text(RECIPE.replace("[near, far]", "&all [near, far]").replace("[dev]", "*all"), encoding="utf-8")
    recipe = load_recipe(path, files_may_be_missing=True)
    assert list(recipe.dev) == list(recipe.train) == ["near", "far"]


def test_two_recipes_that_extend_each_other_are_refused(place: Path) -> None:
    (place / "a.yaml").write_text("extends: b.yaml\n", encoding="utf-8")
    (place / "b.yaml").write_text("extends: ./a.yaml\n", encoding="utf-8")
    with pytest.raises(RecipeError, match="extends itself"):
        load_recipe(place / "a.yaml")
