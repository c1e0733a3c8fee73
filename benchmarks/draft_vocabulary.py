"""The time of a draft pass of an MTP layer by the number of tokens that it may draft.

A random model of one decoder layer with an output layer as large as Qwen3.5's (248,320 tokens, hidden size 1024), and
an MTP layer like it, chains of 4: the output layer is what takes the time, and its weights do not matter for that.

    python -m benchmarks.draft_vocabulary
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.common.settings import RESULTS, load_average, markdown_table, parser, publish, settings
from treespec import Chain, TreeSpeculation, load_mtp
from treespec.heads import Mtp

SIZES = {"vocab_size": 248_320, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 1}
DEPTH = 4


def write_layer(model: Any, folder: Path) -> None:
    """The model's layer again as an MTP layer in Qwen's layout."""
    layer = {f"mtp.layers.0.{name}": weight for name, weight in model.model.layers[0].state_dict().items()}
    norms = {f"mtp.{name}.weight": torch.ones(1024) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    save_file(layer | norms | {"mtp.fc.weight": torch.randn(1024, 2048) / 64}, folder / "model.safetensors")


def draft_ms(model: Any, drafter: Mtp, rounds: int) -> float:
    """Median milliseconds of a draft pass, over calls."""
    found = []
    for _ in range(rounds):
        speculation = TreeSpeculation(drafter, tree=Chain(DEPTH))
        model.generate(torch.arange(8)[None], max_new_tokens=8, do_sample=False, custom_generate=speculation)
        stats = speculation.stats
        found.append(1000 * stats.seconds["draft"] / (DEPTH * stats.num_drafts))
    return median(found)


def main() -> None:
    options = parser(__doc__ or "", threads=1)
    options.add_argument("--draft-vocab", type=int, nargs="+", default=[SIZES["vocab_size"], 65_536, 32_768, 8192])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--output", type=Path, default=RESULTS / "draft_vocabulary.json")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    attention = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True}
    config = Qwen3Config(**SIZES, **attention, eos_token_id=None)
    model = Qwen3ForCausalLM(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        write_layer(model, Path(folder))
        drafters = {size: load_mtp(model, folder, draft_vocab=size) for size in args.draft_vocab}
    found = {str(size): round(draft_ms(model, drafter, args.rounds), 2) for size, drafter in drafters.items()}
    data = settings(rounds=args.rounds, ms=found) | {"load_average_after": load_average()}
    table = markdown_table(["tokens", "ms"], [[f"{int(size):,}", f"{ms:.1f}"] for size, ms in found.items()])
    note = f"Load averages {data['load_average']} before and {data['load_average_after']} after.\n"
    title = "# Milliseconds of an MTP draft pass by its draft vocabulary"
    publish(args.output, data, f"{title}\n\n{table}\n{note}")


if __name__ == "__main__":
    main()
