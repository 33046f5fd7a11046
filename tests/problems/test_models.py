"""Every model: its minimum is that of another solver, and its certificates are never below the true gaps."""

import clarabel
import numpy as np
import pytest
import torch
from scipy import sparse

import lmd
from lmd.errors import CapabilityError, InputError
from lmd.operators import Blur, Mask, ParallelBeam, gaussian_kernel
from lmd.problems import SecondOrderModel, TVModel
from lmd.terms import Absolute, KullbackLeibler, Squares


class Program:
    """min over v of a sum of pieces, each a function of M v, as a conic program: Clarabel shares nothing with us."""

    def __init__(self, count):
        self.count, self.cost, self.squares = count, [np.zeros(count)], []
        self.rows, self.right, self.cones = [], [], []
        self.linear, self.constant = [], 0.0

    def _new(self, cost):
        first = self.count
        self.count += len(cost)
        self.cost.append(np.asarray(cost, float))
        return sparse.csr_matrix((np.ones(len(cost)), (range(len(cost)), range(first, self.count))))

    def _wide(self, M):
        M = sparse.csr_matrix(M)
        return sparse.hstack([M, sparse.csr_matrix((M.shape[0], self.count - M.shape[1]))]).tocsr()

    def _in_cone(self, M, offset, cone):
        """M v + offset in the cone: Clarabel has b - A v."""
        self.rows.append(-self._wide(M))
        self.right.append(np.broadcast_to(offset, M.shape[0]).astype(float))
        self.cones.append(cone)

    def squared(self, M, y, weight=1.0):
        """sum weight (M v - y)^2."""
        self.squares.append((sparse.csr_matrix(M), np.ravel(y), np.broadcast_to(weight, M.shape[0])))

    def absolute(self, M, y, weight):
        """sum weight |M v - y|."""
        t = self._new(np.broadcast_to(weight, M.shape[0]))
        for sign in (1, -1):
            self._in_cone(
                self._wide(t) - sign * self._wide(M), sign * np.ravel(y), clarabel.NonnegativeConeT(M.shape[0])
            )

    def lengths(self, Ms, weight):
        """sum weight |(M_1 v, M_2 v, ...)|, group by group."""
        t = self._new(np.broadcast_to(weight, Ms[0].shape[0]))
        wide = [self._wide(M) for M in (t, *Ms)]
        for row in range(t.shape[0]):
            group = sparse.vstack([M[row] for M in wide])
            self._in_cone(group, 0.0, clarabel.SecondOrderConeT(len(wide)))

    def huber(self, Ms, weight, delta):
        """The same of Huber's function: min over r of weight (|r| + |M v - r|^2 / 2 delta)."""
        parts = [self._new(np.zeros(M.shape[0])) for M in Ms]
        self.lengths(parts, weight)
        for M, r in zip(Ms, parts, strict=True):
            self.squared(self._wide(M) - self._wide(r), np.zeros(M.shape[0]), weight / (2 * delta))

    def counts(self, M, y):
        """sum w - y log w + y log y - y, w = M v: t >= -log w, or (-t, 1, w) in the exponential cone."""
        y = np.ravel(y)
        counted = np.flatnonzero(y > 0)
        self.constant += float(np.sum(y[counted] * np.log(y[counted]) - y[counted]))
        self.linear.append(sparse.csr_matrix(M).sum(axis=0))
        t = self._new(y[counted])
        wide, t = self._wide(M), self._wide(t)
        self._in_cone(wide, 0.0, clarabel.NonnegativeConeT(M.shape[0]))
        for place, row in enumerate(counted):
            group = sparse.vstack([-t[place], sparse.csr_matrix((1, self.count)), wide[row]])
            self._in_cone(group, np.array([0.0, 1.0, 0.0]), clarabel.ExponentialConeT())

    def box(self, M, low, high):
        self._in_cone(M, -low, clarabel.NonnegativeConeT(M.shape[0]))
        self._in_cone(-M, high, clarabel.NonnegativeConeT(M.shape[0]))

    def minimum(self):
        P, q, constant = sparse.csc_matrix((self.count, self.count)), np.concatenate(self.cost), self.constant
        for row in self.linear:
            q[: row.shape[1]] += np.ravel(row)
        for M, y, weight in self.squares:
            wide = self._wide(M)
            P = P + 2 * wide.T @ sparse.diags(weight) @ wide
            q = q - 2 * wide.T @ (weight * y)
            constant += float(np.sum(weight * y**2))
        settings = clarabel.DefaultSettings()
        settings.verbose, settings.tol_gap_rel, settings.tol_gap_abs, settings.tol_feas = False, 1e-10, 1e-10, 1e-10
        A = sparse.vstack([self._wide(M) for M in self.rows]).tocsc()
        b = np.concatenate(self.right)
        found = clarabel.DefaultSolver(sparse.triu(P).tocsc(), q, A, b, self.cones, settings).solve()
        assert str(found.status) in ("Solved", "AlmostSolved"), found.status
        return found.obj_val + constant


def forward_differences(shape, spacing=None):
    """One matrix for each axis of arrays of this shape, row by row; the last difference along it is 0."""
    found = []
    for axis, n in enumerate(shape):
        own = sparse.diags([-np.ones(n), np.ones(n - 1)], [0, 1]).tolil()
        own[n - 1, :] = 0
        parts = [sparse.identity(m) for m in shape]
        parts[axis] = own / (1.0 if spacing is None else spacing[axis])
        whole = parts[0]
        for part in parts[1:]:
            whole = sparse.kron(whole, part)
        found.append(whole.tocsr())
    return found


FORMS = pytest.mark.parametrize("isotropic", [False, True], ids=["anisotropic", "isotropic"])
SHAPE = (2, 3, 4)
"""C, H, W."""


def random(*shape, seed=0):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def matrix(operator, shape):
    rows = torch.eye(int(np.prod(shape)), dtype=torch.float64).reshape(-1, *shape)
    return sparse.csr_matrix(operator(rows).flatten(1).T.numpy())


def data(kind, seed=0, shape=SHAPE):
    y = random(1, *shape, seed=seed)
    return (9 * y).round() if kind == "counts" else y


def whole(program, matrices, shape, weight, isotropic=False, coupled=False, huber=0.0, offset=0):
    """weight TV of arrays `shape` = (C, *size), by its formula."""
    channels, pixels = shape[0], int(np.prod(shape[1:]))
    place = [
        sparse.csr_matrix((np.ones(pixels), (range(pixels), offset + c * pixels + np.arange(pixels))))
        for c in range(channels)
    ]
    fields = [[D @ _wide(p, offset + channels * pixels) for D in matrices] for p in place]
    weights = np.broadcast_to(weight, (channels, len(matrices), pixels))
    if coupled and isotropic:
        groups = [([field for channel in fields for field in channel], weights[0, 0])]
    elif coupled:
        groups = [([fields[c][a] for c in range(channels)], weights[0, a]) for a in range(len(matrices))]
    elif isotropic:
        groups = [(fields[c], weights[c, 0]) for c in range(channels)]
    else:
        groups = [([fields[c][a]], weights[c, a]) for c in range(channels) for a in range(len(matrices))]
    for group, each in groups:
        program.huber(group, each, huber) if huber else program.lengths(group, each)


def _wide(M, count):
    return sparse.hstack([M, sparse.csr_matrix((M.shape[0], count - M.shape[1]))]).tocsr()


def misfit(program, kind, y, M, mask=None):
    weight = 1.0 if mask is None else mask.flatten().numpy()
    if kind == "counts":
        program.counts(M, y.flatten().numpy())
    elif kind == "absolute":
        program.absolute(M, y.flatten().numpy(), weight)
    else:
        program.squared(M, y.flatten().numpy(), weight)


TERMS = {"squares": Squares, "absolute": Absolute, "counts": KullbackLeibler}


def first_order(kind, options, shape=SHAPE, forward=None, spacing=None, box=None, weight=0.3, seed=0):
    """The model, and its minimum by the other solver."""
    clean = data(kind, seed, shape)
    y = clean if forward is None else forward(clean)
    y = y.round() if kind == "counts" else y
    problem = TVModel(TERMS[kind](y), weight, spacing=spacing, box=box, forward=forward, size=shape[1:], **options)
    count = int(np.prod(shape))
    program = Program(count)
    misfit(program, kind, y, sparse.identity(count) if forward is None else matrix(forward, shape))
    by = weight if not isinstance(weight, torch.Tensor) else _spread(weight, len(shape) - 1)
    whole(program, forward_differences(shape[1:], spacing), shape, by, **options)
    if box is not None or forward is not None:
        program.box(sparse.identity(count), *(box or (0.0, 1.0)))
    return problem, program.minimum()


def _spread(weight, axes):
    weight = weight if weight.ndim > axes + 2 else weight.unsqueeze(2)
    return weight[0].flatten(2).numpy()


MODELS = {
    "volume with spacings": ("squares", {}, {"shape": (1, 3, 4, 3), "spacing": (2.0, 1.0, 0.5)}),
    "coupled": ("squares", {"coupled": True}, {}),
    "pixel weights": ("squares", {}, {"weight": 0.05 + random(1, 1, 3, 4, seed=3)}),
    "huber": ("squares", {"huber": 0.1}, {}),
    "coupled huber": ("squares", {"huber": 0.1, "coupled": True}, {}),
    "counts": ("counts", {}, {}),
    "absolute": ("absolute", {}, {"weight": 0.6}),
    "absolute, coupled": ("absolute", {"coupled": True}, {"weight": 0.6}),
    "box": ("squares", {}, {"box": (0.3, 0.6)}),
    "masked counts": ("counts", {}, {"forward": Mask((random(1, 1, 3, 4, seed=4) > 0.3).double()), "box": (0.0, 9.0)}),
    "masked squares, coupled": (
        "squares",
        {"coupled": True},
        {"forward": Mask((random(1, 1, 3, 4, seed=4) > 0.3).double())},
    ),
    "blurred counts": (
        "counts",
        {},
        {"shape": (1, 3, 4), "forward": Blur(gaussian_kernel(0.6, 3), 3, 4, "replicate"), "box": (0.0, 9.0)},
    ),
    "blurred impulses": (
        "absolute",
        {},
        {"shape": (1, 3, 3), "forward": Blur(gaussian_kernel(0.4, 3), 3, 3), "weight": 0.2},
    ),
    "tomography": ("squares", {}, {"forward": ParallelBeam(3, 4, angles=3), "weight": 0.05}),
}


def solved(problem, tolerance):
    """The larger the numbers of x, the longer the primal steps."""
    large = float(problem.noisy.max()) > 2
    found = lmd.solve(problem, tolerance, solver=lmd.solvers.PDHG(8 if large else None, settle=1 if large else 4))
    value, gap = problem.certified_gap(found.x, found.dual)
    return found, float(value), float(gap)


@FORMS
@pytest.mark.parametrize("name", MODELS)
def test_the_minimum_is_that_of_another_solver(name, isotropic):
    kind, options, more = MODELS[name]
    problem, least = first_order(kind, {**options, "isotropic": isotropic}, **more)
    _, value, gap = solved(problem, 3e-7)
    assert value - gap <= least + 1e-7 * abs(least)
    assert value == pytest.approx(least, rel=1e-6)


def test_weights_per_difference():
    problem, least = first_order("squares", {}, weight=0.05 + random(1, 2, 2, 3, 4, seed=3))
    assert solved(problem, 3e-7)[1] == pytest.approx(least, rel=1e-6)


def second_order(kind, isotropic, shape=SHAPE, seed=0, weight=0.2, **options):
    y = data(kind, seed, shape)
    problem = SecondOrderModel(TERMS[kind](y), weight, isotropic=isotropic, **options)
    channels, size = shape[0], shape[1:]
    pixels, count = int(np.prod(size)), int(np.prod(shape))
    program = Program(count * (len(size) + 1))
    misfit(program, kind, y, sparse.identity(count))
    D = forward_differences(size)
    inside = [sparse.diags((np.asarray(abs(M).sum(axis=1)).ravel() > 0).astype(float)) for M in D]
    for c in range(channels):
        x = _at(c * pixels, pixels)
        w = [inside[a] @ _at(count + (c * len(size) + a) * pixels, pixels) for a in range(len(size))]
        fields = [_less(D[a] @ x, w[a]) for a in range(len(size))]
        bends = []
        for a in range(len(size)):
            kept = sparse.diags(
                (inside[a].diagonal() * (D[a] @ np.arange(pixels) != 0) * _next(inside[a], D[a])).astype(float)
            )
            bends.append(kept @ D[a] @ w[a])
        both = sparse.diags(inside[0].diagonal() * inside[1].diagonal())
        bends.append(both @ (_less(D[0] @ w[1], -(D[1] @ w[0]))) / np.sqrt(2))
        for group, by in ((fields, weight), (bends, 2 * weight)):
            for each in [group] if isotropic else [[one] for one in group]:
                program.lengths(each, by)
    return problem, program.minimum()


def _at(first, pixels):
    return sparse.csr_matrix((np.ones(pixels), (range(pixels), first + np.arange(pixels))))


def _less(A, B):
    count = max(A.shape[1], B.shape[1])
    return _wide(A, count) - _wide(B, count)


def _next(inside, D):
    """Whether the neighbour ahead along the axis is one that a difference belongs to."""
    return (abs(D) @ inside.diagonal() >= 2).astype(float)


@FORMS
@pytest.mark.parametrize("kind", ["squares", "absolute"])
def test_the_minimum_of_second_order_is_that_of_another_solver(kind, isotropic):
    problem, least = second_order(kind, isotropic, shape=(1, 3, 4), weight=0.2 if kind == "squares" else 0.6)
    _, value, gap = solved(problem, 3e-7)
    assert value - gap <= least + 1e-7 * abs(least)
    assert value == pytest.approx(least, rel=1e-6)


def instances(seed):
    """One of each kind, of random sizes, scales and forms, in float32 or float64."""
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if seed % 2 else torch.float64
    y = torch.rand(2, 3, 4, 5, dtype=torch.float64, generator=generator)
    scale = float(10 ** (6 * torch.rand((), generator=generator) - 3))
    isotropic, coupled = bool(seed & 2), bool(seed & 4)
    form = {"isotropic": isotropic, "coupled": coupled}
    weights = (0.05 + torch.rand(2, 1, 4, 5, dtype=torch.float64, generator=generator)).to(dtype)
    small, counts = (scale * y).to(dtype), (9 * y).round().to(dtype)
    mask = (y[:, :1] > 0.3).to(dtype)
    yield TVModel(Squares(small), scale * weights, **form)
    yield TVModel(Squares(small), 0.3 * scale, huber=0.1 * scale, **form)
    yield TVModel(Absolute(small, mask), 0.6, **form)
    yield TVModel(KullbackLeibler(counts), 0.3, **form)
    yield TVModel(Squares(small), 0.3 * scale, box=(0.3 * scale, 0.7 * scale), **form)
    yield TVModel(KullbackLeibler(counts * mask), 0.3, forward=Mask(mask), box=(0.0, 9.0), **form)
    yield SecondOrderModel(Squares(small), 0.3 * scale, **form)
    yield SecondOrderModel(Absolute(small), 0.6, **form)


@pytest.mark.parametrize("seed", range(8))
def test_a_certificate_is_never_below_the_true_gap(seed):
    """The lower bound of any two points is below every value that is ever reached."""
    generator = torch.Generator().manual_seed(seed)
    for problem in instances(seed):
        solver = lmd.solvers.PDHG()
        state = solver.init(problem, problem.start())
        bounds, values, own = [], [], []
        for k in range(150):
            state = solver.step(problem, state)
            if k % 30 == 9:
                noise = torch.randn(state.dual.shape, generator=generator, dtype=state.x.dtype)
                for dual in (state.dual, state.dual * (1 + noise), -state.dual):
                    value, gap = problem.certified_gap(state.x, dual)
                    bounds.append(value - gap)
                    values.append(value)
                    exact = problem.double().value(state.x.double())
                    torch.testing.assert_close(value, exact, rtol=1e-12, atol=1e-300)
                own.append(bounds[-3])
        assert bool((torch.stack(bounds).amax(0) <= torch.stack(values).amin(0)).all()), type(problem).__name__
        assert bool(torch.isfinite(torch.stack(own)).all()), type(problem).__name__


def test_instances_of_a_batch_are_the_same_alone():
    for problem in instances(0):
        x = problem.start() * 0.9 + 0.05 * problem.start().mean()
        p = problem.operator(x)
        for index in (0, 1):
            one = problem.select(index)
            chosen = slice(index, index + 1)
            for name, given in (("value", (x,)), ("gap", (x, p))):
                whole, alone = getattr(problem, name)(*given), getattr(one, name)(*(each[chosen] for each in given))
                torch.testing.assert_close(whole[chosen], alone)


def test_a_plane_costs_nothing_in_second_order():
    ramp = (0.1 * torch.arange(5.0))[:, None] + 0.2 * torch.arange(6.0)
    problem = SecondOrderModel(Squares(ramp[None, None]), 0.3)
    found = lmd.solve(problem, 1e-3, iterations=1000)
    assert float(found.values) < 1e-4 < float(TVModel(Squares(ramp[None, None]), 0.3).value(ramp[None, None]))
    torch.testing.assert_close(problem.image(found.x)[0, 0], ramp, atol=0.02, rtol=0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda y: TVModel(lmd.terms.L1(), 0.3), "misfit: got L1, which has no y, expected a term about data"),
        (lambda y: TVModel(Squares(y), huber=-1.0), "huber: got -1.0, expected"),
        (
            lambda y: TVModel(Squares(y), torch.ones(1, 2, 4, 5), coupled=True),
            r"weight: got shape \(1, 2, 4, 5\), expec",
        ),
        (
            lambda y: TVModel(Squares(y), torch.ones(1, 1, 2, 4, 5), isotropic=True),
            r"weight: got shape \(1, 1, 2, 4, 5",
        ),
        (lambda y: TVModel(Squares(y), -torch.ones(1, 1, 4, 5)), "weight: got -1, expected positive numbers"),
        (lambda y: TVModel(KullbackLeibler(y - 1)), "y: got -1, expected numbers of 0 or more"),
        (lambda y: TVModel(Squares(y), box=(1.0, 0.0)), "box: got "),
        (lambda y: SecondOrderModel(Squares(y), ratio=0.0), "ratio: got 0.0, expected a positive number"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises((InputError, CapabilityError), match=rf"\A{words}"):
        call(torch.zeros(1, 2, 4, 5))


def test_references_are_for_what_the_model_is():
    y = random(1, 1, 3, 3)
    problem = TVModel(Squares(y), 0.2, huber=0.1)
    found = lmd.guarantees.optimum(problem)
    assert float(found.gap) <= 1e-6 * float(found.value)


@pytest.mark.parametrize("misfit", [Squares, Absolute, KullbackLeibler])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_wide_box_changes_nothing(misfit, dtype):
    """Of the box only what is in the range of the data counts: proofs do not suffer from the rest."""
    y = 3 * torch.rand(2, 1, 6, 5, dtype=dtype, generator=torch.Generator().manual_seed(0))
    values = []
    for box in (None, (0.0, 1e9)):
        result = lmd.solve(TVModel(misfit(y), 0.4, isotropic=True, box=box), tolerance=1e-4)
        assert {status.name for status in result.status} == {"TOLERANCE_REACHED"}
        assert int(result.iterations.max()) < 5000
        values.append(result.values)
    torch.testing.assert_close(*values, rtol=2e-4, atol=0)


@pytest.mark.parametrize("misfit", [Squares, Absolute])
def test_a_box_that_cuts_the_data_is_kept(misfit):
    y = torch.rand(2, 3, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    problem = TVModel(misfit(y), 0.05, box=(0.2, 0.6))
    result = lmd.solve(problem, tolerance=1e-6)
    assert float(result.x.min()) == 0.2 and float(result.x.max()) == 0.6
    beside = lmd.solve(TVModel(misfit(y), 0.05), tolerance=1e-6)
    assert bool((beside.values < result.values).all())


def test_a_weight_far_above_what_flattens_an_image_is_no_harder():
    """F(x) grows with the weight for every x that is not flat, so that the flat one has to be found."""
    y = torch.rand(2, 1, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = (torch.rand(11, generator=torch.Generator().manual_seed(1)) < 0.5)[None, None]
    for misfit, form in ((Absolute, {}), (Squares, {"forward": Mask(mask)})):
        results = [lmd.solve(TVModel(misfit(y), weight, **form), tolerance=1e-3) for weight in (1e2, 1e10)]
        for result in results:
            assert {status.name for status in result.status} == {"TOLERANCE_REACHED"}
        torch.testing.assert_close(results[0].values, results[1].values, rtol=2e-3, atol=0)


@pytest.mark.parametrize("size", [(2, 2, 2), (2, 5), (1, 4), (2,)])
def test_planes_over_axes_of_every_length_are_levels_of_second_order(size):
    """What costs no bending is found exactly, over two entries as over many."""
    places = torch.meshgrid(*(torch.arange(float(n), dtype=torch.float64) for n in size), indexing="ij")
    y = (3.0 + sum((n + 1) * place for n, place in enumerate(places)))[None, None]
    problem = SecondOrderModel(Squares(y), 1.0)
    level, _ = problem.levelled(problem.start(), problem.operator(problem.start()))
    torch.testing.assert_close(problem.image(level), y)
    assert float(problem.value(level)) < 1e-20
