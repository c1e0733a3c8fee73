"""A model split over several processes (tensor parallel): every process prints the same text, rank 0 shows it.

torchrun --nproc-per-node 3 examples/tensor_parallel.py --model HuggingFaceTB/SmolLM2-135M-Instruct

Every process gets whole heads: this model has nine, and three key-value heads. Without torchrun one process runs
the whole model.
"""

import os
import tempfile
from typing import Any

import torch
from example_models import arguments, load, tiny_model
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig  # pyright: ignore[reportPrivateImportUsage]

import treespec


def load_split(name: str | None) -> Any:
    """The model, split over the processes that torchrun started; a tiny one by way of a folder."""
    options = {"distributed_config": DistributedConfig(tp_plan="auto")} if "RANK" in os.environ else {}
    if name is not None:
        return AutoModelForCausalLM.from_pretrained(name, **options).eval()
    with tempfile.TemporaryDirectory() as folder:
        tiny_model().save_pretrained(folder)
        return AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def main() -> None:
    args = arguments(__doc__)
    _, tokenizer = load(args.model)
    model = load_split(args.model)
    inputs = tokenizer(args.prompt, return_tensors="pt").to(model.device)
    speculation = treespec.TreeSpeculation([treespec.TokenRecycling(), treespec.SuffixLookup()])
    options = {"max_new_tokens": args.new_tokens, "do_sample": False, "pad_token_id": tokenizer.pad_token_id}
    out = model.generate(**inputs, **options, custom_generate=speculation)
    plain = model.generate(**inputs, **options)
    if int(os.environ.get("RANK", "0")) == 0:
        print(tokenizer.decode(out[0], skip_special_tokens=True))
        print(f"identical to plain generate: {torch.equal(out, plain)}")
        print(speculation.stats.summary())
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
