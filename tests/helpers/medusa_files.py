"""Medusa heads for the tests: random ones, ones fitted to a tiny model's own text, and files in the public formats."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from treespec.heads import MedusaHead, MedusaHeads


def shape(draft_vocab=64):
    """The description from which `head_runs.make` makes Medusa heads."""
    return {"medusa": {"vocab_size": draft_vocab, "num_layers": 2}}


def random_heads(
    num_heads=3, hidden_size=32, vocab_size=64, num_layers=1, seed=0, has_bias=True, token_map=None
) -> MedusaHeads:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape, scale):
        return scale * torch.randn(*shape, generator=generator)

    def head() -> MedusaHead:
        blocks = tuple(
            (random(hidden_size, hidden_size, scale=0.1), random(hidden_size, scale=0.1) if has_bias else None)
            for _ in range(num_layers)
        )
        return MedusaHead(blocks, random(vocab_size, hidden_size, scale=0.5))

    return MedusaHeads(tuple(head() for _ in range(num_heads)), token_map)


class PlainMedusa:
    """The heads in float64, one text and one token at a time."""

    def __init__(self, heads: MedusaHeads, vocab_size=64) -> None:
        self.heads, self.vocab_size, self.target_ids = heads.heads, vocab_size, heads.target_ids.tolist()

    def logits(self, states, tokens, path, first=0):
        """float64 [V] after the drafted tokens `path`; `states` [n - 1 - first, H] are the target's."""
        # A row of one token has no state before its root.
        features = states[-1].double() if len(states) else torch.zeros(states.shape[1], dtype=torch.float64)
        head = self.heads[len(path)]
        for weight, bias in head.blocks:
            inner = weight.double() @ features + (0 if bias is None else bias.double())
            features = features + inner / (1 + (-inner).exp())
        full = torch.full((self.vocab_size,), -torch.inf, dtype=torch.float64)
        full[self.target_ids] = head.output.double() @ features
        return full


@torch.no_grad()
def fitted_heads(model, texts, num_heads=4) -> MedusaHeads:
    """Heads whose outputs are least-squares fits to the tokens that follow in `texts` int64 [B, T]."""
    states = model(input_ids=texts, output_hidden_states=True, use_cache=False).hidden_states[-1]
    heads = []
    for i, plain in enumerate(random_heads(num_heads, states.shape[-1], model.config.vocab_size).heads):
        reach = i + 2
        features = states[:, : texts.shape[1] - reach].flatten(0, 1)
        for weight, bias in plain.blocks:
            features = features + torch.nn.functional.silu(features @ weight.T + bias)
        wanted = torch.nn.functional.one_hot(texts[:, reach:].flatten(), model.config.vocab_size).float()
        heads.append(MedusaHead(plain.blocks, 20 * torch.linalg.lstsq(features, wanted).solution.T))
    return MedusaHeads(tuple(heads))


def authors_tensors(heads: MedusaHeads, prefix="", has_outputs=True) -> dict[str, torch.Tensor]:
    return tensors_named(heads, prefix + "{i}.{j}.linear", prefix + "{i}.{j}" if has_outputs else None)


def vllm_tensors(heads: MedusaHeads, prefix="") -> dict[str, torch.Tensor]:
    return tensors_named(heads, prefix + "blocks.{i}.layers.{j}", prefix + "lm_heads.{i}")


def tensors_named(heads: MedusaHeads, block: str, output: str | None) -> dict[str, torch.Tensor]:
    """The tensors of head i's block j, and of its output, which comes where the next block would."""
    tensors = {}
    for i, head in enumerate(heads.heads):
        for j, (weight, bias) in enumerate(head.blocks):
            tensors[block.format(i=i, j=j) + ".weight"] = weight
            if bias is not None:
                tensors[block.format(i=i, j=j) + ".bias"] = bias
        if output is not None:
            tensors[output.format(i=i, j=len(head.blocks)) + ".weight"] = head.output
    return tensors


def write(folder: Path, tensors, config=None, name="medusa_lm_head.safetensors") -> Path:
    save_file({key: tensor.clone() for key, tensor in tensors.items()}, folder / name)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder
