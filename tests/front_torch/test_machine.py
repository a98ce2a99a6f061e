"""Steps, missing gradients, edits, checkpoints and growth in any order: all stays on the rule's path."""

import copy
import io

import hypothesis
import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.cases import BODIES
from tests.tolerances import FLOAT64
from tests.twin import array
from torch.nn import Parameter

from agdopt import AGD
from agdopt.core.reference import Reference

OPTIONS = st.fixed_dictionaries(
    {
        "delta": st.sampled_from([1e-8, 0.3, 10.0]),
        "betas": st.sampled_from([(0.9, 0.999), (0.5, 0.9), (0.0, 0.9)]),
        "weight_decay": st.sampled_from([0.0, 0.1]),
        "decoupled_weight_decay": st.booleans(),
        "amsgrad": st.booleans(),
        "maximize": st.booleans(),
        "standardize": st.booleans(),
        "clip": st.sampled_from([None, 0.5]),
    }
)
SHAPES = st.sampled_from([(), (1,), (0,), (5,), (2, 3)])
SEEDS = st.integers(0, 2**16)


class Life(RuleBasedStateMachine):
    """The optimizer, and a float64 Reference for every parameter, never set right in between."""

    @initialize(
        body=st.sampled_from([name for name in BODIES if name not in ("gpu", "differentiable")]),
        shapes=st.lists(SHAPES, min_size=1, max_size=4),
        options=OPTIONS,
        seed=SEEDS,
    )
    def begin(self, body, shapes, options, seed):
        self.body, self.steps = body, 0
        self.generator = torch.Generator().manual_seed(seed)
        self.params, self.rules = [], []
        self.optimizer = AGD(
            [self.parameter(shape, options) for shape in shapes], lr=0.05, **BODIES[body], **options
        )

    def parameter(self, shape, options):
        p = Parameter(torch.randn(shape, dtype=torch.float64, generator=self.generator))
        same = {
            key: value for key, value in options.items() if key not in ("betas", "decoupled_weight_decay")
        }
        beta1, beta2 = options["betas"]
        decoupled = options["decoupled_weight_decay"]
        self.rules.append(Reference(array(p), lr=0.05, beta1=beta1, beta2=beta2, decoupled=decoupled, **same))
        self.params.append(p)
        return p

    @rule(absent=st.sets(st.integers(0, 6)), again=st.integers(1, 3))
    def step(self, absent, again):
        for i, (p, r) in enumerate(zip(self.params, self.rules, strict=True)):
            p.grad = torch.randn(p.shape, dtype=p.dtype, generator=self.generator)
            if i in absent:
                p.grad = None
            else:
                for _ in range(again):
                    r.step(array(p.grad))
        for _ in range(again):
            self.optimizer.step()
        self.steps += again

    @rule(shapes=st.lists(SHAPES, min_size=1, max_size=2), options=OPTIONS)
    def add_group(self, shapes, options):
        if len(self.params) < 7:
            self.optimizer.add_param_group(
                {"params": [self.parameter(s, options) for s in shapes], **options}
            )

    @rule(lr=st.sampled_from([0.0, 0.01, 0.2]), tensor=st.booleans())
    def set_lr(self, lr, tensor):
        for group in self.optimizer.param_groups:
            group["lr"] = torch.tensor(lr, dtype=torch.float64) if tensor else lr
        for r in self.rules:
            r.lr = lr

    @rule(which=st.integers(0, 6))
    def forget_one(self, which):
        if which < len(self.params):
            self.optimizer.state.pop(self.params[which], None)
            r = self.rules[which]
            r.t, r.kept, r.c1 = 0, 1.0, 0.0
            r.m, r.b = np.zeros_like(r.m), np.zeros_like(r.b)

    @rule(strict=st.booleans())
    def through_a_checkpoint(self, strict):
        file = io.BytesIO()
        torch.save(self.optimizer.state_dict(), file)
        file.seek(0)
        groups = [{"params": group["params"]} for group in self.optimizer.param_groups]
        self.optimizer = AGD(groups, lr=0.05)
        self.optimizer.load_state_dict(torch.load(file, weights_only=strict))

    @rule()
    def be_copied(self):
        self.params, self.optimizer = copy.deepcopy((self.params, self.optimizer))

    @rule(which=st.integers(0, 6))
    def move(self, which):
        if which < len(self.params):
            p = self.params[which]
            p.data = p.data.clone()
            state = self.optimizer.state.get(p, {})
            for key in state:
                state[key] = state[key].clone()

    @rule()
    def zero_grad(self):
        self.optimizer.zero_grad()

    @invariant()
    def every_parameter_is_where_the_rule_puts_it(self):
        for p, r in zip(getattr(self, "params", []), getattr(self, "rules", []), strict=True):
            state = self.optimizer.state.get(p, {})
            assert int(state.get("step", 0)) == r.t
            # Errors of single steps add up, and a small bhat magnifies them.
            np.testing.assert_allclose(array(p), r.w, rtol=0, atol=FLOAT64.p * 1e3 * (1 + self.steps))
            if state:
                np.testing.assert_allclose(array(state["exp_avg"]), r.m, rtol=0, atol=FLOAT64.state * 10)


TestLife = Life.TestCase
TestLife.settings = hypothesis.settings(stateful_step_count=25)
