"""Processes of several containers that start at once with the same cold cache.

All are process 1, on hosts of other names, so that neither process ids nor host names tell them apart.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.resume.crashes import assert_same_result, write_recipe

pytestmark = pytest.mark.soak

CONTAINERS = 4
APART = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--uts", "sh", "-c", 'hostname $0 && exec "$@"']


def test_containers_share_a_cold_cache(tiny_bert_folder: Path, tmp_path: Path) -> None:
    tried = [*APART, "host", sys.executable, "-c", "import os; print(os.getpid())"]
    if subprocess.run(tried, capture_output=True, text=True, check=False).stdout != "1\n":
        pytest.skip("this machine forbids process-id namespaces")
    recipe = write_recipe(tmp_path, tiny_bert_folder, "inf-dds")
    environment = os.environ | {"MIXFLUENCE_CACHE": str(tmp_path / "cold")}
    train = [sys.executable, "-m", "mixfluence", "train", str(recipe)]
    started = [
        subprocess.Popen(
            [*APART, f"host-{number}", *train, f"output={tmp_path / str(number)}"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(CONTAINERS)
    ]
    for process in started:
        _, said = process.communicate(timeout=600)
        assert process.returncode == 0, said
        assert "damaged" not in said
    for number in range(1, CONTAINERS):
        assert_same_result(tmp_path / str(number), tmp_path / "0")
