"""The paper's figures, to the digit: with the literal algorithm and with agdopt.AGD in float64."""

import math

import numpy as np
import pytest
import torch

from agdopt import AGD
from agdopt.core.reference import Reference


def beale(x, y):
    r = (1.5 - x + x * y, 2.25 - x + x * y**2, 2.625 - x + x * y**3)
    return (
        2 * (r[0] * (y - 1) + r[1] * (y**2 - 1) + r[2] * (y**3 - 1)),
        2 * x * (r[0] + 2 * r[1] * y + 3 * r[2] * y**2),
    )


def beale_curvature(x, y):
    """The diagonal of the Hessian."""
    r1, r2 = 2.25 - x + x * y**2, 2.625 - x + x * y**3
    return (
        2 * ((y - 1) ** 2 + (y**2 - 1) ** 2 + (y**3 - 1) ** 2),
        2 * (x**2 + (2 * x * y) ** 2 + 2 * x * r1 + (3 * x * y**2) ** 2 + 6 * x * y * r2),
    )


def bowl(x, y):
    """(x + y)^2 + (x - y)^2 / 10"""
    return 2 * (x + y) + (x - y) / 5, 2 * (x + y) - (x - y) / 5


def rosenbrock(x, y):
    return -2 * (1 - x) - 400 * x * (y - x**2), 200 * (y - x**2)


# gradient, start, optimum
PROBLEMS = {
    "bowl": (bowl, (2.5, 0.0), (0.0, 0.0)),
    "beale": (beale, (-2.5, -2.5), (3.0, 0.5)),
    "rosenbrock": (rosenbrock, (-4.0, -4.0), (1.0, 1.0)),
}


def literal(start, gradient, **options):
    """The points of a path, the start first."""
    r = Reference(np.array(start), **options)
    while True:
        yield float(r.w[0]), float(r.w[1])
        r.step(gradient(*r.w))


def torchs(cls, **fixed):
    def path(start, gradient, **options):
        w = torch.tensor(start, dtype=torch.float64)
        w.grad = torch.empty_like(w)
        optimizer, point, grad = cls([w], lr=1e-3, **fixed, **options), w.numpy(), w.grad.numpy()
        while True:
            yield float(point[0]), float(point[1])
            grad[:] = gradient(*point)
            optimizer.step()

    return path


AGDS = pytest.mark.parametrize("path", [literal, torchs(AGD, foreach=False)], ids=["literal", "agdopt.AGD"])
adam = torchs(torch.optim.Adam, foreach=False)


def first_closer_than(path, optimum, bounds=(0.1, 1e-2, 1e-3)):
    """Steps until the point is closer to the optimum than each bound, for the first time."""
    found, steps = [], enumerate(path)
    for bound in bounds:
        found += [next(t for t, point in steps if math.dist(point, optimum) < bound)]
    return tuple(found)


@pytest.mark.parametrize(
    ("problem", "options", "steps"),
    [
        ("bowl", {}, (1253, 1722, 2081)),
        ("bowl", {"amsgrad": True}, (1674, 2623, 3535)),
        ("beale", {}, (10244, 11843, 12748)),
        ("rosenbrock", {}, (14179, 15251, 15940)),
    ],
)
@AGDS
def test_steps_to_the_optimum(path, problem, options, steps):
    gradient, start, optimum = PROBLEMS[problem]
    assert first_closer_than(path(start, gradient, **options), optimum) == steps


@pytest.mark.parametrize(
    ("problem", "steps"),
    [
        ("bowl", (6051, 7158, 7860)),
        ("beale", (17155, 18887, 19832)),
        ("rosenbrock", (22589, 23823, 24579)),
    ],
)
def test_steps_to_the_optimum_of_adam(problem, steps):
    """What AGD is compared with, and a check on the problems themselves."""
    gradient, start, optimum = PROBLEMS[problem]
    assert first_closer_than(adam(start, gradient), optimum) == steps


@AGDS
def test_beale(path):
    """Points A and B of the paper: ||grad||_1 / ||diag H||_1, largest on the path and after 9000 steps."""
    gradient, start, optimum = PROBLEMS["beale"]
    points = [point for point, _ in zip(path(start, gradient), range(9001), strict=False)]
    sizes = [(sum(map(abs, beale(*point))), sum(map(abs, beale_curvature(*point)))) for point in points]
    a = max(range(9001), key=lambda t: sizes[t][0] / sizes[t][1])
    assert a == 1681
    assert sizes[a] == pytest.approx((22.257, 25.308), abs=5e-4)
    assert sizes[-1] == pytest.approx((0.208, 34.834), abs=5e-4)
    assert math.dist(points[-1], optimum) == pytest.approx(0.285, abs=5e-4)

    of_adam = [point for point, _ in zip(adam(start, gradient), range(9001), strict=False)]
    ratio = math.dist(points[a], points[a - 1]) / math.dist(of_adam[a], of_adam[a - 1])
    assert ratio == pytest.approx(1.895, abs=5e-4)
    covered = 1 - math.dist(of_adam[-1], optimum) / math.dist(start, optimum)
    assert covered == pytest.approx(0.56, abs=5e-3)


def test_derivatives():
    """Gradients and curvatures, against differences of the functions as the paper writes them."""
    functions = {
        beale: lambda x, y: (1.5 - x + x * y) ** 2 + (2.25 - x + x * y**2) ** 2 + (2.625 - x + x * y**3) ** 2,
        bowl: lambda x, y: (x + y) ** 2 + (x - y) ** 2 / 10,
        rosenbrock: lambda x, y: (1 - x) ** 2 + 100 * (y - x**2) ** 2,
    }
    x, y, h = -1.3, 0.7, 1e-6
    for gradient, f in functions.items():
        differences = (f(x + h, y) - f(x - h, y)) / (2 * h), (f(x, y + h) - f(x, y - h)) / (2 * h)
        assert gradient(x, y) == pytest.approx(differences, rel=1e-7)
    assert beale_curvature(x, y) == pytest.approx(
        (
            (beale(x + h, y)[0] - beale(x - h, y)[0]) / (2 * h),
            (beale(x, y + h)[1] - beale(x, y - h)[1]) / (2 * h),
        ),
        rel=1e-7,
    )
