"""class AGDW: other defaults, nothing else."""

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from agdopt.torch.optimizer import AGD


class AGDW(AGD):
    """AGD by AdamW's settings: the same lr, betas and weight_decay, no delta to guess.

    The change is measured in units of the gradient's noise (standardize), which gives steps Adam's scale;
    none exceeds clip * lr. delta only keeps 0 / 0 away, so scaling the loss by a power of two changes
    nothing. All else is AGD's: only the defaults differ, and they stand here alone.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        delta: float = 1e-15,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = True,
        state_dtype: torch.dtype | None = None,
        standardize: bool = True,
        clip: float | None = 1.0,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            delta,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=decoupled_weight_decay,
            state_dtype=state_dtype,
            standardize=standardize,
            clip=clip,
            stochastic_rounding=stochastic_rounding,
            seed=seed,
        )
