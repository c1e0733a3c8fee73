"""Drafters in vLLM that read texts, or the target's states of them, before they draft."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from treespec.cpu.linear_kernels import Kernel, Packed, Rounded, fast_linears, has_onednn
from treespec.vllm.files import Files
from treespec.vllm.heads import load_served_head
from treespec.vllm.options import Options
from treespec.vllm.pages import OnPages

if TYPE_CHECKING:
    from treespec.vllm.draft_model import ServedModel

    Reader = OnPages | ServedModel


NUM_ROWS = 8
"""Weights are packed in the layout for this many rows; others use it too."""


def load_reader(options: Options, model: Any, vllm_config: Any, device: torch.device, ranks: Any) -> Reader | None:
    """The head or draft model of these options, without its pages, for vLLM's model of this `VllmConfig`.

    All ranks call this; all but the first, which drafts, get None or a head that is not used. For errors see
    `load_served_head` and `load_served_model`.
    """
    config, files = vllm_config.model_config, Files(vllm_config.load_config, options.revision)
    if options.head is not None:
        served = load_served_head(options.head, model, config, files, ranks.all_gather)
        pack_products(served.head)
        return served
    if options.draft_model is None or not ranks.is_first_rank:
        return None
    from treespec.vllm.draft_model import load_served_model  # With transformers' models.

    num_weights = sum(weight.numel() for weight in model.parameters())
    return load_served_model(options.draft_model, config, files, num_weights, device)


def pack_products(head: nn.Module) -> None:
    """Replace the products of linear layers on CPUs by oneDNN's with weights packed ahead, in bfloat16 where the CPU
    multiplies that.

    Rounding changes drafts, not the output. With 15 rows it is several times as fast as PyTorch's own products.
    """
    kernel = Rounded(Packed(NUM_ROWS)) if torch.cpu._is_avx512_bf16_supported() else Packed(NUM_ROWS)
    for module in fast_linears(head):
        if has_onednn(module.weight.dtype) and module.weight.dtype in (torch.float32, torch.bfloat16):
            vars(module)["forward"] = partial(
                _product, module=module, kernel=kernel, packed=kernel.pack(module.weight.detach())
            )


def _product(inputs: Tensor, module: nn.Linear, kernel: Kernel, packed: Tensor) -> Tensor:
    return kernel.run(inputs, packed, module.bias, module.out_features)
