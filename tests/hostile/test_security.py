"""Files are never executed and secrets are never written.

- Pickles in a checkpoint are not loaded.
- The package unpacks no archive, unpickles nothing, evaluates no text and loads YAML with safe loaders only.
- Tokens of the environment are in no file of a run.
- A damaged cache is rebuilt with the same contents.
"""

from __future__ import annotations

import ast
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

import mixfluence
from mixfluence.data.cache import cache_root
from mixfluence.data.tokenize import Prompts, Tokeniser, tokenise
from mixfluence.encoders import load_encoder
from mixfluence.training.checkpoints import seal
from tests.data.readers import read_pairs
from tests.hostile.cases_models import EVIL, PWNED
from tests.hostile.cases_runs import RESUME, unfinished
from tests.hostile.workplace import Case, run_program, write_workplace

pytestmark = pytest.mark.slow

SECRET = "hf_thisShouldBeNowhere"
SOURCE = Path(mixfluence.__file__).parent
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "system", "popen", "extractall", "unpack_archive"}
FORBIDDEN_MODULES = {"pickle", "dill", "cloudpickle", "shelve", "marshal", "tarfile", "zipfile"}


def test_the_pickle_of_these_tests_does_create_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(EVIL).close()
    assert (tmp_path / PWNED).exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"])
def test_a_pickle_in_a_checkpoint_is_not_executed(
    name: str, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "place"
    shutil.copytree(finished_run, folder, symlinks=True)
    monkeypatch.setenv("MIXFLUENCE_CACHE", str(folder / "cache"))
    checkpoint = unfinished(folder)
    (checkpoint / name).write_bytes(EVIL)
    seal(checkpoint)
    with suppress(Exception):  # how it is refused is not the point here
        run_program(Case("", RESUME), folder)
    assert not list(folder.rglob(PWNED))


def test_pickles_beside_good_weights_are_not_opened(
    tiny_bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_bert_folder, tmp_path / "model")
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        (tmp_path / "model" / name).write_bytes(EVIL)
    load_encoder(str(tmp_path / "model"), device="cpu")
    assert not (tmp_path / PWNED).exists()


@cache
def syntax() -> list[tuple[str, ast.AST]]:
    return [
        (str(path.relative_to(SOURCE)), node)
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call | ast.Import | ast.ImportFrom)
    ]


def test_the_package_cannot_execute_what_it_reads() -> None:
    found = []
    for place, node in syntax():
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            method = isinstance(node.func, ast.Attribute)
            # re.compile, torch.compile and model.eval() are others.
            if name in FORBIDDEN_CALLS and not (method and name in {"compile", "eval"}):
                found.append(f"{place}: {name}")
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [f"{place}: {name}" for name in names if name.split(".")[0] in FORBIDDEN_MODULES]
    assert found == []


def test_yaml_is_loaded_safely_and_tensors_without_pickles() -> None:
    loads = []
    for place, node in syntax():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, name = ast.unparse(node.func.value), node.func.attr
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if (owner, name) in {("yaml", "load"), ("yaml", "compose")}:
                loader = options.get("Loader") or ast.unparse(node.args[1])
                loads.append((place, loader in {"_Loader", "yaml.SafeLoader"}))
            if (owner, name) in {("yaml", "unsafe_load"), ("yaml", "full_load")}:
                loads.append((place, False))
            if (owner, name) == ("torch", "load"):
                loads.append((place, options.get("weights_only") == "True"))
            if (owner, name) == ("np", "load"):
                loads.append((place, options.get("allow_pickle") == "False"))
    assert loads
    assert [place for place, safe in loads if not safe] == []


@pytest.mark.slow
def test_no_token_of_the_environment_is_in_a_run(
    tiny_bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "place"
    write_workplace(folder, tiny_bert_folder)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:{SECRET}@proxy.example.org")
    assert run_program(Case(""), folder) == 0
    files = [path for path in (folder / "run").rglob("*") if path.is_file()]
    assert {"record.json", "recipe.yaml", "trace.jsonl", "training_args.bin", "README.md"} <= {f.name for f in files}
    assert [str(path) for path in files if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.parametrize("name", ["facts.json", "rows.arrow"])
@pytest.mark.parametrize("content", [b"", b"{", b"nothing", None], ids=["empty", "cut", "other", "gone"])
def test_damaged_rows_are_read_again(name: str, content: bytes | None, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('["w1", "w2"]\n["w3", "w4"]\n', encoding="utf-8")
    expected = read_pairs(tmp_path / "a.jsonl")
    (folder,) = (cache_root() / "rows").iterdir()
    damage(folder / name, content)
    again = read_pairs(tmp_path / "a.jsonl")
    assert again.fingerprint == expected.fingerprint
    assert again.rows.to_list() == [
        {"anchor": "w1", "positive": "w2", "negatives": [], "scores": []},
        {"anchor": "w3", "positive": "w4", "negatives": [], "scores": []},
    ]


def damage(path: Path, content: bytes | None) -> None:
    # Not in place: what is mapped into memory would change under its reader.
    path.unlink()
    if content is not None:
        path.write_bytes(content)


@pytest.mark.parametrize("name", ["manifest.json", "anchors.npy", "query_ids.bin", "document_starts.npy"])
@pytest.mark.parametrize("content", [b"", b"{}", None], ids=["empty", "other", "gone"])
def test_damaged_token_ids_are_made_again(
    name: str, content: bytes | None, tmp_path: Path, make_static: Callable[[], SentenceTransformer]
) -> None:
    (tmp_path / "a.jsonl").write_text('["w1", "w2 w5"]\n["w3", "w4"]\n', encoding="utf-8")
    rows, tokeniser = read_pairs(tmp_path / "a.jsonl"), Tokeniser(make_static())
    expected = tokenise(rows, tokeniser, Prompts())
    ids = [array.tolist() for array in expected.documents.token_ids(expected._passages[:])]
    (folder,) = (cache_root() / "tokens").iterdir()
    damage(folder / name, content)
    again = tokenise(rows, tokeniser, Prompts())
    assert [array.tolist() for array in again.documents.token_ids(again._passages[:])] == ids
