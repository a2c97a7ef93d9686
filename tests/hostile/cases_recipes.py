"""Wrong recipes and wrong overrides on the command line."""

from __future__ import annotations

from tests.hostile.workplace import Case

CHECK = "recipes check recipe.yaml"
STRATEGY = "dev: [dev]\nstrategy: "


def whole(what: str, content: str | bytes, *names: str, says: str = "") -> Case:
    """The whole recipe is replaced."""
    return Case(what, CHECK, names, says, files={"recipe.yaml": content})


def change(what: str, old: str, new: str, *names: str, says: str = "") -> Case:
    """A part of the recipe is replaced."""
    return Case(what, CHECK, names, says, recipe={old: new})


def trained(what: str, old: str, new: str, *names: str) -> Case:
    """A mistake that is found when the run is built."""
    return Case(what, "train recipe.yaml", names, recipe={old: new})


def override(what: str, text: str, *names: str, says: str = "") -> Case:
    return Case(what, f"{CHECK} {text}", names, says)


def trainer(what: str, arguments: str, name: str, says: str = "", missing: str | None = None) -> Case:
    """Arguments for the trainer library, which is the only one to know that they are wrong."""
    recipe = {"steps: 4": f"steps: 4\n  trainer_args: {arguments}"}
    return Case(what, "train recipe.yaml", (name,), says, recipe=recipe, missing=missing)


CASES = [
    Case("no such file", "train absent.yaml", ("absent.yaml", "english13"), says="no such file"),
    Case("a folder", "train data", ("data",)),
    Case("a run folder", "plan run", ("run/recipe.yaml",)),
    Case("a binary file", "recipes show model/model.safetensors", ("model/model.safetensors:1",), says="UTF-8"),
    whole("an empty file", "", "recipe.yaml"),
    whole("a list", "- name: x\n", "recipe.yaml", says="mapping"),
    whole("bytes that are not UTF-8", b"name: x\nseed: \xff\xfe\n", "recipe.yaml:2"),
    whole("a NUL byte", b"name: x\nseed: a\x00b\n", "recipe.yaml"),
    whole("an alias of itself", "name: &a [*a]\n", "recipe.yaml"),
    change("an unclosed bracket", "train: [near, far]", "train: [near, far", "recipe.yaml:5", says="not valid YAML"),
    change("a tab as indentation", "  steps: 4", "\tsteps: 4", "recipe.yaml:8"),
    change("a Python tag", "name: tiny", "name: !!python/object/apply:os.system [ls]", "recipe.yaml:1"),
    change(
        "a misspelt key",
        "  steps: 4",
        "  stepz: 4",
        "recipe.yaml:8",
        says="training: unknown key 'stepz'; did you mean 'steps'?",
    ),
    change("a duplicate key", "name: tiny", "name: tiny\nname: twice", "recipe.yaml:2", "name", says="duplicate key"),
    change("a list as a key", "name: tiny", "name: tiny\n? [a, b]\n: 1", "recipe.yaml:2"),
    change(
        "text for a number",
        "steps: 4",
        "steps: many",
        "recipe.yaml:8",
        says="training.steps: input should be a valid integer, found 'many'",
    ),
    change("a number out of range", "steps: 4", "steps: 99999999999999999999", "recipe.yaml:8", "training.steps"),
    change("a negative seed", "name: tiny", "name: tiny\nseed: -1", "recipe.yaml:2", "seed"),
    change("NaN", "steps: 4", "steps: 4\n  learning_rate: .nan", "recipe.yaml:9", "training.learning_rate"),
    change("infinity", "steps: 4", "steps: 4\n  learning_rate: .inf", "recipe.yaml:9", "training.learning_rate"),
    change("a negative weight", "dev: [dev]", STRATEGY + "{init: {weights: {near: -1, far: 1}}}", "near", "yaml:6"),
    change("zero weights", "dev: [dev]", STRATEGY + "{init: {weights: {near: 0, far: 0}}}", "strategy.init", "yaml:6"),
    change("an unknown strategy", "dev: [dev]", STRATEGY + "inf-dss", "recipe.yaml:6", "strategy", "'inf-dss'"),
    change("a strategy without its dev set", "dev: [dev]", "strategy: inf-dds", "recipe.yaml", "inf-dds", "dev"),
    change("a dataset listed twice", "train: [near, far]", "train: [near, near]", "recipe.yaml:4", "train", "'near'"),
    change("a list as a dataset", "train: [near, far]", "train: [[near], far]", "recipe.yaml:4", "train"),
    change("an unknown format", "format: pairs", "format: piars", "recipe.yaml:4", "train.near.format", "'piars'"),
    change("a missing data file", "near, far", "near, fra", "recipe.yaml:4", "train.fra.path", "data/fra.jsonl"),
    change("a path too long", "near, far", f"near, {'n' * 300}", "recipe.yaml:4", ".path"),
    change("a recipe that extends itself", "name: tiny", "name: tiny\nextends: ./recipe.yaml", "recipe.yaml:2"),
    change("a recipe that extends a list", "name: tiny", "name: tiny\nextends: [a]", "recipe.yaml:2", "extends"),
    override("no value", "training.steps", "'training.steps'", says="expected key=value"),
    override("a value that is not YAML", "'training.steps=[1'", "training.steps=[1"),
    override("a key below a list", "train.naer.split=all", "train.naer.split=all", "'near'"),
    trained("too many epochs", "dev: [dev]", STRATEGY + "{max_epochs: 0.1}", "max_epochs"),
    trained("a floor too high", "dev: [dev]", STRATEGY + "{floor: 0.9}", "floor of 0.9"),
    trained(
        "a distillation metric without teacher scores",
        "dev: [dev]",
        "dev: [dev]\nstrategy: {name: inf-dds, probe: {metric: distillation}}",
        "dev",
    ),
    trainer("an unknown trainer argument", "{max_step: 3}", "max_step"),
    trainer("text for a trainer's number", "{max_grad_norm: x}", "max_grad_norm", says="expected float, found 'x'"),
    trainer("a number for a trainer's mapping", "{lr_scheduler_kwargs: 3}", "lr_scheduler_kwargs"),
    trainer("negative loader workers", "{dataloader_num_workers: -1}", "dataloader_num_workers"),
    trainer("one wrong trainer argument of two", "{max_grad_norm: 2, adam_beta1: 5}", "adam_beta1"),
    trainer("an unknown optimizer", "{optim: adam}", "optim"),
    trainer("an unknown schedule argument", "{lr_scheduler_kwargs: {cycles: 2}}", "lr_scheduler_kwargs"),
    trainer("an unknown tracker", "{report_to: nonsense}", "report_to"),
    trainer("NEFTune noise", "{neftune_noise_alpha: 5}", "neftune_noise_alpha"),
    trainer("Liger kernels not installed", "{use_liger_kernel: true}", "use_liger_kernel", missing="liger_kernel"),
    trainer("an unknown compile mode", "{torch_compile_mode: fast}", "torch_compile_mode"),
    change(
        "far too many clusters", "dev: [dev]", STRATEGY + f"{{name: crisp, branching: {10**20}}}", "strategy.branching"
    ),
    trainer("a learning rate of no parameter", "{learning_rate_mapping: {decoder: 0.1}}", "learning_rate_mapping"),
]
