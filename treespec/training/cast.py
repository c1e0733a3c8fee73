"""Float32 weights that multiply in another dtype."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CastWeights:
    """A module's weights in `dtype`; those that no gradient reaches are cast once.

    Unlike autocast this rounds no activation twice and keeps norms in fused kernels.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._module, self._dtype = module, dtype
        named = [*module.named_parameters(), *module.named_buffers()]
        # Rotary frequencies lose whole positions in bfloat16.
        self._names = [n for n, t in named if t.is_floating_point() and not n.endswith("inv_freq")]
        trained = {n for n, t in module.named_parameters() if t.requires_grad}
        self._trained = [n for n in self._names if n in trained]
        everything = dict(named)
        self._frozen = {n: everything[n].detach().to(dtype) for n in self._names if n not in trained}

    def cast(self) -> dict[str, Tensor]:
        """By name, for `torch.func.functional_call`; gradients flow to the module's own weights."""
        return self._frozen | {n: self._module.get_parameter(n).to(self._dtype) for n in self._trained}
