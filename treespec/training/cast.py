"""Float32 weights that multiply in another dtype."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CastWeights:
    """A module's weights in `dtype`; those that are not trained are cast once.

    Unlike autocast this rounds no activation twice and keeps norms in fused kernels.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._module, self._dtype = module, dtype
        tensors = dict([*module.named_parameters(), *module.named_buffers()])
        # Rotary frequencies would be wrong by whole positions in bfloat16.
        names = [n for n, t in tensors.items() if t.is_floating_point() and not n.endswith("inv_freq")]
        self._trained = [n for n in names if tensors[n].requires_grad]
        self._frozen = {n: tensors[n].detach().to(dtype) for n in names if not tensors[n].requires_grad}

    def cast(self) -> dict[str, Tensor]:
        """By name, for `torch.func.functional_call`; gradients flow to the module's own weights."""
        return self._frozen | {n: self._module.get_parameter(n).to(self._dtype) for n in self._trained}
