"""Guards: dev sets that a mixture may not harm beyond a share.

- With one target, with several, and with several guards, no general solver finds a better mixture among those that
  spare the guards, and it finds the same one.
- A guard with enough room changes nothing, whatever its influences; the room shrinks as its metric gets worse.
- If every mixture harms, the one found harms less, and datasets keep the order of their harm.
- Guards do not pull: what helps a guard gains nothing while no guard is harmed.
- What is saved as JSON continues exactly. A guard that is no dev set, or leaves no target, is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import minimize

from mixfluence.influence import Influences
from mixfluence.policy import UNIFORM, Guards, Vector, softmax
from mixfluence.policy.bounds import MOST_PUSH
from mixfluence.policy.rules import _LEAST_HELP, fair_mixture
from mixfluence.strategies import InfDDS

SIZES = {"sharp": 100, "mild": 200, "other": 400}
NONE = np.array([], np.int64)


def watching(influence: Vector, *, allowed: float = 0.0, loss: float = 1.0) -> Guards:
    """Guards whose loss was 1 at the start, with the influences of datasets on them."""
    guards = Guards({f"g{number}": allowed for number in range(influence.shape[1])}, len(influence))
    guards.observe(NONE, np.ones(influence.shape[1]), influence[:0], -1)
    guards.observe(np.arange(len(influence)), np.full(influence.shape[1], loss), influence, -1)
    return guards


def held(guards: Guards, solve: Callable[[Vector], Vector]) -> Vector:
    return guards.hold(solve(np.zeros(1)), solve, rounds=2)


def reference(value: Callable[[Vector], float], start: Vector, pull: float, influence: Vector, room: float) -> Vector:
    """Return the best mixture that spares the guards, by a general solver."""

    def cost(p: Vector) -> float:
        return pull * float(np.sum(p * (np.log(np.maximum(p, 1e-300)) - start))) - value(p)

    spares = {"type": "ineq", "fun": lambda p: p @ influence + room}
    found = minimize(
        cost,
        np.full(len(start), 1 / len(start)),
        bounds=[(1e-12, 1)] * len(start),
        constraints=[{"type": "eq", "fun": lambda p: p.sum() - 1}, spares],
        method="SLSQP",
        options={"maxiter": 2000, "ftol": 1e-14},
    )
    assert found.success
    return np.asarray(found.x)


@pytest.mark.parametrize("guards", [1, 3])
@pytest.mark.parametrize(("loss", "allowed"), [(1.3, 0.2), (1.0, 0.02)], ids=["worse than allowed", "about to be"])
@pytest.mark.parametrize("targets", [1, 4])
def test_no_general_solver_finds_a_better_mixture(targets: int, guards: int, loss: float, allowed: float) -> None:
    rng = np.random.default_rng(10 * targets + guards)
    helps, pull = np.maximum(rng.normal(size=(6, targets)), 0), 0.15
    start = np.log(rng.dirichlet(np.ones(6)))
    # What helps the targets harms the guards, except for one dataset.
    influence = 0.05 * rng.uniform(size=(6, guards)) - 0.2 * helps.mean(axis=1, keepdims=True)
    influence[5] = 0.1
    room = max(0.0, 1 + allowed - loss) / 2
    found = watching(influence, allowed=allowed, loss=loss)
    if targets == 1:
        logits = held(found, lambda shift: start + shift + helps[:, 0] / pull)
        expected = reference(lambda p: float(p @ helps[:, 0]), start, pull, influence, room)
    else:
        logits = held(found, lambda shift: fair_mixture(start + shift, helps, pull))
        expected = reference(lambda p: float(np.log(_LEAST_HELP + p @ helps).mean()), start, pull, influence, room)
    assert found.pushes.any()
    assert (softmax(logits) @ influence >= -room - 1e-7).all()
    assert softmax(logits) == pytest.approx(expected, abs=1e-4)


def test_a_guard_with_room_changes_nothing_and_room_shrinks_as_it_gets_worse() -> None:
    influence = np.array([[-0.02], [0.0], [0.01]])
    logits = np.log([0.8, 0.1, 0.1])
    shares = []
    for loss in (0.9, 1.0, 1.08, 1.09, 1.1, 1.5):
        found = watching(influence, allowed=0.1, loss=loss)
        shares.append(float(softmax(held(found, lambda shift: logits + shift))[0]))
    assert shares[:2] == pytest.approx([0.8, 0.8], abs=1e-12)
    assert shares[1] >= shares[2] > shares[3] > shares[4] == pytest.approx(shares[5])


def test_if_every_mixture_harms_it_harms_less() -> None:
    influence = np.array([[-0.3], [-0.1], [-0.2]])
    found = watching(influence)
    p = softmax(held(found, lambda shift: np.zeros(3) + shift))
    assert found.pushes == pytest.approx([MOST_PUSH])
    assert p[1] > p[2] > p[0] > 0
    assert p @ influence[:, 0] > -0.15


def test_a_dataset_that_spares_a_guard_is_not_drawn_more_for_it_alone() -> None:
    logits = np.zeros(2)
    assert held(watching(np.array([[0.5], [0.0]]), loss=2.0), lambda shift: logits + shift) == pytest.approx(logits)


def rounds(count: int) -> list[Influences]:
    """Rounds in which `sharp` helps the target most and harms the guard, whose loss rises."""
    rng = np.random.default_rng(0)
    gains = [np.array([[1.0], [0.5], [0.0]]), np.array([[-0.1], [0.01], [0.0]])]
    return [
        Influences(
            np.arange(3),
            NONE,
            ["t", "g"],
            np.array([1.0, 1.0 + 0.05 * number]),
            [own + rng.normal(0, 0.01, (3, 32)) for own in gains],
        )
        for number in range(count)
    ]


def guided(**options: float) -> InfDDS:
    strategy = InfDDS(init=UNIFORM, guard=options, update_every=6)
    strategy.start(SIZES)
    return strategy


def test_the_strategy_moves_to_what_spares_the_guard_and_continues_exactly() -> None:
    without, guarded = guided(), guided(g=0.02)
    facts = {}
    for influences in rounds(6):
        without.update(influences.of(["t"]))
        facts = guarded.update(influences)
    assert without.weights()[0] > 0.5
    assert guarded.weights()[1] > 0.6 > 0.2 > guarded.weights()[0]
    assert facts["guards"]["g"]["worse"] == pytest.approx(0.25)
    assert facts["guards"]["g"]["push"] > 0

    resumed = guided(g=0.02)
    resumed.load_state_dict(json.loads(json.dumps(guarded.state_dict())))
    assert resumed.weights().tolist() == guarded.weights().tolist()
    for strategy in (guarded, resumed):
        strategy.update(rounds(7)[-1])
    assert resumed.weights().tolist() == guarded.weights().tolist()


@pytest.mark.parametrize(("guard", "named"), [({"x": 0.1}, "strategy.guard.x"), ({"t": 0.1, "g": 0}, "target")])
def test_a_guard_must_be_a_dev_set_besides_a_target(guard: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        guided(**guard).check_guards(["t", "g"])


def test_a_model_that_follows_its_probes_is_not_guarded() -> None:
    with pytest.raises(ValueError, match="reptile"):
        InfDDS.model_validate({"guard": {"g": 0.1}, "reptile": "relative"})
