import numpy as np
import pytest
import torch

import lmd
from lmd.errors import InputError
from lmd.problems import from_cvxpy

cp = pytest.importorskip("cvxpy")


def steering(horizon=4):
    """Receding-horizon control as CVXPY's users write it: states, inputs, and equations between them."""
    state, inputs = cp.Variable((2, horizon + 1), name="state"), cp.Variable((1, horizon), name="inputs")
    begin, aim = cp.Parameter(2, name="begin"), cp.Parameter(name="aim")
    F, G = np.array([[1.0, 0.3], [0.0, 1.0]]), np.array([[0.0], [0.4]])
    cost = cp.sum_squares(state[0, 1:] - aim) + 0.1 * cp.sum_squares(inputs) + 0.1 * cp.sum_squares(state[1, 1:])
    rules = [state[:, 0] == begin, inputs <= 0.5, inputs >= -0.5]
    rules += [state[:, t + 1] == F @ state[:, t] + G @ inputs[:, t] for t in range(horizon)]
    return cp.Problem(cp.Minimize(cost), rules)


DRAWS = {
    "begin": lambda batch, generator: torch.randn(batch, 2, generator=generator),
    "aim": lambda batch, generator: torch.randn(batch, generator=generator),
}


def test_its_minimisers_are_those_of_clarabel():
    problem = steering()
    family = from_cvxpy(problem, DRAWS, dtype=torch.float64)
    program, _ = family.sample(3, torch.Generator().manual_seed(1))
    result = lmd.solve(program, 1e-11, solver=lmd.solvers.ADMM(), iterations=4000)
    found = family.unpack(program, result.x)
    generator = torch.Generator().manual_seed(1)
    values = {each.name(): DRAWS[each.name()](3, generator) for each in problem.parameters()}
    for i in range(3):
        for parameter in problem.parameters():
            parameter.value = values[parameter.name()][i].double().numpy()
        np.testing.assert_allclose(float(result.values[i]), problem.solve(solver="CLARABEL"), rtol=1e-6)
        for variable in problem.variables():
            np.testing.assert_allclose(found[variable.name()][i].numpy(), variable.value, atol=1e-4)
    part = program.select(slice(1, 2))
    torch.testing.assert_close(family.unpack(part, result.x[1:2])["inputs"], found["inputs"][1:2])


def test_parameters_may_be_the_keys_and_samples_follow_the_seed():
    problem = steering(2)
    family = from_cvxpy(problem, {each: DRAWS[each.name()] for each in problem.parameters()})
    one, two = (family.sample(2, torch.Generator().manual_seed(5))[0] for _ in range(2))
    assert one.f.quadratic[1].dtype == torch.float32 and torch.equal(one.f.quadratic[1], two.f.quadratic[1])


def program(cost, *rules):
    x, s = cp.Variable(2, name="x"), cp.Parameter(2, name="s")
    return cp.Problem(cp.Minimize(cost(x, s)), [rule(x, s) for rule in rules])


NORMAL = {"s": lambda batch, generator: torch.randn(batch, 2, generator=generator)}


@pytest.mark.parametrize(
    ("make", "draws", "said"),
    [
        (lambda: program(lambda x, s: s @ x, lambda x, s: x >= 0), NORMAL, "strictly convex"),
        (lambda: program(lambda x, s: cp.sum(cp.exp(x)) + s @ x), NORMAL, "another kind"),
        (lambda: program(lambda x, s: cp.sum_squares(x), lambda x, s: s @ x <= 1), NORMAL, "change the matrix F"),
        (lambda: program(lambda x, s: cp.sum_squares(x - s)), {}, "a function for each of s"),
        (lambda: program(lambda x, s: cp.sum_squares(x - s)), {"s": lambda b, g: torch.randn(b, 3)}, "2 numbers"),
        (lambda: "no problem", NORMAL, "cvxpy.Problem"),
    ],
)
def test_what_is_no_family_of_quadratic_programs_is_refused_in_one_line(make, draws, said):
    with pytest.raises(InputError, match=said) as error:
        from_cvxpy(make(), draws)
    assert "\n" not in str(error.value)
