"""The script in the README runs."""

from __future__ import annotations

import re
from pathlib import Path

from datasets import Dataset

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_script_runs(tiny_bert_folder: Path, tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    changes = {
        "sentence-transformers/all-MiniLM-L6-v2": str(tiny_bert_folder),
        '"out", max_steps=1000, per_device_train_batch_size=128': f'"{tmp_path}", max_steps=3, report_to=[]',
    }
    for old, new in changes.items():
        assert old in script
        script = script.replace(old, new)
    pool = {
        name: Dataset.from_dict({"q": [f"w{i} w{i + first}" for i in range(40)], "p": [f"w{i}" for i in range(40)]})
        for first, name in enumerate(("nq", "fiqa", "scifact", "fiqa_dev"))
    }
    names: dict[str, object] = dict(pool)
    exec(script, names)
    trainer = names["trainer"]
    assert getattr(trainer, "state").global_step == 3  # noqa: B009 - the script's names are untyped
