"""DFlash 2 (z-lab 2026): DFlash with convolutions in the layers, and a selector of the tokens of neighbours.

Every layer convolves what goes into its attention and its MLP, and what comes out, over the few positions before one in
its block. The selector adds a score to each of the best tokens v of a depth, by the token u before it and the output h
at the depth: (P[u] * A h) S[v]. Other tokens are not drafted there.

Axis letters: p taps of a convolution, O groups of channels, o channels per group.
"""

import torch
from torch import Tensor, nn

from treespec.heads.modules.layers import DecoderLayer, KeyValueCache, LayerConfig, Mask
from treespec.heads.modules.rotary import Rotation


class BlockConvolution(nn.Module):
    """Two causal convolutions per channel over the positions of blocks, of a sublayer's input and of its output.

    Tap i weighs the position i before; weights are learned ones, plus some that a linear map of the input gives for all
    channels of a group.
    """

    def __init__(self, hidden_size: int, block_size: int, num_taps: int, group_size: int) -> None:
        super().__init__()
        self._block_size, self._group_size = block_size, group_size
        self.base_kernel = nn.Parameter(torch.zeros(2, num_taps, hidden_size, dtype=torch.float32, device="cpu"))
        self.kernel_projection = nn.Linear(hidden_size, 2 * num_taps * (hidden_size // group_size), bias=False)

    def kernels(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The kernels [B, F, p, O, o] of a sublayer's input and output, from its normed input [B, F, H]."""
        base = self.base_kernel.unflatten(-1, (-1, self._group_size))
        changes = self.kernel_projection(states).view(*states.shape[:2], *base.shape[:3], 1)
        first, second = (base + changes).unbind(2)
        return first, second

    def convolve(self, states: Tensor, kernels: Tensor) -> Tensor:
        """States [B, F, H] of blocks, one after the other, by kernels [B, F, p, O, o]."""
        size = self._block_size
        blocks = states.view(len(states), -1, size, *kernels.shape[3:])
        weights = kernels.view(*blocks.shape[:3], *kernels.shape[2:])
        mixed = weights[..., 0, :, :] * blocks
        for tap in range(1, kernels.shape[2]):
            before = nn.functional.pad(blocks[:, :, :-tap], (0, 0, 0, 0, tap, 0))
            mixed = mixed + weights[..., tap, :, :] * before
        return mixed.view(states.shape)


class ConvolvedLayer(DecoderLayer):
    """A decoder layer with a `BlockConvolution` around its attention and one around its MLP."""

    def __init__(self, config: LayerConfig, index: int, block_size: int, num_taps: int, group_size: int) -> None:
        super().__init__(config, index)
        sizes = config.hidden_size, block_size, num_taps, group_size
        self.attention_conv, self.mlp_conv = BlockConvolution(*sizes), BlockConvolution(*sizes)

    def forward(self, states: Tensor, rotation: Rotation, mask: Mask, cache: KeyValueCache) -> Tensor:
        """States [B, F, H] of whole blocks to [B, F, H]."""
        conv, normed = self.attention_conv, self.input_layernorm(states)
        before, after = conv.kernels(normed)
        mixed = self.self_attn(conv.convolve(normed, before), rotation, mask, cache)
        states = states + conv.convolve(mixed, after)
        conv, normed = self.mlp_conv, self.post_attention_layernorm(states)
        before, after = conv.kernels(normed)
        return states + conv.convolve(self.mlp(conv.convolve(normed, before)), after)


class CandidateSelector(nn.Module):
    """Scores the best tokens of a depth by the token before them."""

    def __init__(self, vocab_size: int, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.zeros(vocab_size, rank, dtype=torch.float32, device="cpu"))
        self.successor_codebook = nn.Parameter(torch.zeros(vocab_size, rank, dtype=torch.float32, device="cpu"))
        self.hidden_projection = nn.Linear(hidden_size, rank, bias=False)

    def forward(self, logits: Tensor, outputs: Tensor, tokens: Tensor, num_candidates: int) -> Tensor:
        """Logits [..., V] after tokens int64 [...], minus infinity but at the candidates.

        Args:
            logits: [..., V], without the token before them.
            outputs: [..., H], at the same depths.
        """
        values, ids = logits.topk(min(num_candidates, logits.shape[-1]), -1)
        context = self.predecessor_codebook[tokens] * self.hidden_projection(outputs)
        scores = values + torch.matmul(self.successor_codebook[ids], context.unsqueeze(-1)).squeeze(-1)
        return torch.full_like(logits, -torch.inf).scatter(-1, ids, scores)
