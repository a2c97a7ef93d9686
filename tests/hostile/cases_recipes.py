"""Recipes that cannot work, and changes of them on the command line."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tests.hostile.cases_checkpoints import unfinished
from tests.hostile.workplace import Case

CHECK = "recipes check recipe.yaml"
# Nine values, and eight times nine times as many.
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n" for before, after in pairwise("abcdefghi")
)
STRATEGY = "dev: [dev]\nstrategy: "


def endless(folder: Path) -> None:
    (folder / "recipe.yaml").symlink_to("/dev/zero")


def whole(what: str, content: str | bytes) -> Case:
    return Case(what, CHECK, files={"recipe.yaml": content})


def change(what: str, old: str, new: str) -> Case:
    return Case(what, CHECK, recipe={old: new})


def words(what: str, command: str) -> Case:
    return Case(what, f"{CHECK} {command}")


def host(what: str, arguments: str, missing: str | None = None) -> Case:
    """Arguments that are handed on to the host, whose trainer alone knows that they cannot be."""
    return Case(what, recipe={"steps: 4": f"steps: 4\n  host: {arguments}"}, missing=missing)


CASES = [
    Case("no such file", "train absent.yaml"),
    Case("a folder", "train data"),
    whole("an empty file", ""),
    whole("a list", "- name: x\n"),
    whole("bytes that are not UTF-8", b"name: x\nseed: \xff\xfe\n"),
    whole("a NUL byte", b"name: a\x00b\n"),
    whole("aliases of aliases (a billion laughs)", LAUGHS),
    whole("an alias of itself", "name: &a [*a]\n"),
    whole("5,000 brackets, one in the other", "[" * 5000),
    whole("20 million characters", "# " + "x" * 20_000_000),
    Case("a device without end", CHECK, files={"recipe.yaml": None}, arrange=endless),
    change("a bracket that is not closed", "train: [near, far]", "train: [near, far"),
    change("a tab as indentation", "  steps: 4", "\tsteps: 4"),
    change("a tag that would run a program", "name: tiny", "name: !!python/object/apply:os.system [ls]"),
    change("a misspelt key", "  steps: 4", "  stepz: 4"),
    change("a key twice", "name: tiny", "name: tiny\nname: twice"),
    change("a key that is a list", "name: tiny", "name: tiny\n? [a, b]\n: 1"),
    change("a text for a number", "steps: 4", "steps: many"),
    change("a number of 5,000 digits", "steps: 4", f"steps: {'9' * 5000}"),
    change("a number beyond all machines", "steps: 4", "steps: 99999999999999999999"),
    change("a month that there is not", "name: tiny", "name: !!timestamp 2020-99-99"),
    change("a seed below 0", "name: tiny", "name: tiny\nseed: -1"),
    change("a learning rate that is not a number", "steps: 4", "steps: 4\n  learning_rate: .nan"),
    change("an infinite learning rate", "steps: 4", "steps: 4\n  learning_rate: .inf"),
    change("hard negatives by the billion", "steps: 4", "steps: 4\n  hard_negatives: 9000000000"),
    change("a weight below 0", "dev: [dev]", STRATEGY + "{init: {weights: {near: -1, far: 1}}}"),
    change("weights that are all 0", "dev: [dev]", STRATEGY + "{init: {weights: {near: 0, far: 0}}}"),
    change("an unknown sampler", "dev: [dev]", STRATEGY + "inf-dss"),
    change("a sampler that needs a dev set, and none", "dev: [dev]", "strategy: inf-dds"),
    change("a dataset twice", "train: [near, far]", "train: [near, near]"),
    change("lists in a list of datasets", "train: [near, far]", "train: [[near], far]"),
    change("an unknown format", "format: pairs", "format: piars"),
    change("a data file that is not there", "near, far", "near, fra"),
    change("a path of 300 letters", "near, far", f"near, {'n' * 300}"),
    change("a recipe that extends itself", "name: tiny", "name: tiny\nextends: ./recipe.yaml"),
    change("a recipe that extends a list", "name: tiny", "name: tiny\nextends: [a]"),
    Case("a run for a recipe", "plan run"),
    Case("a run that was stopped for a recipe", "train run", arrange=unfinished),
    Case("the weights of a model for a recipe", "recipes show model/model.safetensors"),
    words("a change without a value", "training.steps"),
    words("a change that is not YAML", "'training.steps=[1'"),
    words("a change below a list", "train.near.split=all"),
    words("a change of 5,000 brackets", f"'name={'[' * 5000}'"),
    Case("an argument that the host does not know", recipe={"steps: 4": "steps: 4\n  host: {max_step: 3}"}),
    Case("more epochs than allowed", recipe={"dev: [dev]": STRATEGY + "{max_epochs: 0.1}"}),
    Case("a floor too high", recipe={"dev: [dev]": STRATEGY + "{floor: 0.9}"}),
    host("a text for a number of the host's", "{max_grad_norm: x}"),
    host("a number for a mapping of the host's", "{lr_scheduler_kwargs: 3}"),
    host("fewer loader workers than none", "{dataloader_num_workers: -1}"),
    host("one wrong argument of the host's among others", "{max_grad_norm: 2, adam_beta1: 5}"),
    host("an optimizer that the host does not know", "{optim: adam}"),
    host("an argument that the schedule does not take", "{lr_scheduler_kwargs: {cycles: 2}}"),
    host("a tracker that the host does not know", "{report_to: nonsense}"),
    host("noise that the host cannot add", "{neftune_noise_alpha: 5}"),
    host("kernels whose package is missing", "{use_liger_kernel: true}", missing="liger_kernel"),
    host("a way of compiling that there is not", "{torch_compile_mode: fast}"),
    host("a learning rate for parameters that there are not", "{learning_rate_mapping: {decoder: 0.1}}"),
    Case(
        "a metric that needs a teacher's scores, and none",
        recipe={"dev: [dev]": "dev: [dev]\nstrategy: {name: inf-dds, probe: {metric: distillation}}"},
    ),
]
