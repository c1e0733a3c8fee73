"""A prompt with images: the model reads them once, then trees run over the text.

python examples/images.py --model Qwen/Qwen2.5-VL-3B-Instruct --image photo.jpg
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from example_models import tiny_model_with_images
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

import treespec


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a name or folder of a model for images and text (default: a tiny random one)")
    parser.add_argument("--image", action="append", help="a file; may be given several times (default: two colours)")
    parser.add_argument("--prompt", default="What is in these pictures? What is in the first?")
    parser.add_argument("--new-tokens", type=int, default=32)
    return parser.parse_args()


def load(name: str | None) -> tuple[Any, Any]:
    """A model and its processor."""
    if name is None:
        print("A tiny random model writes this gibberish; --model NAME takes a real one.")
        return tiny_model_with_images()
    return AutoModelForImageTextToText.from_pretrained(name).eval(), AutoProcessor.from_pretrained(name)


def main() -> None:
    args = arguments()
    model, processor = load(args.model)
    images = [Image.open(path).convert("RGB") for path in args.image or []]
    images = images or [Image.new("RGB", (64, 64), colour) for colour in ("red", "blue")]
    content = [{"type": "image", "image": image} for image in images] + [{"type": "text", "text": args.prompt}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    ).to(model.device)

    speculation = treespec.TreeSpeculation([treespec.TokenRecycling(), treespec.SuffixLookup()], tree=16)
    options = {"max_new_tokens": args.new_tokens, "do_sample": False}
    out = model.generate(**inputs, **options, custom_generate=speculation)
    print(repr(processor.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)))
    stats = speculation.stats
    print(f"{stats.num_emitted_tokens} tokens in {stats.num_target_passes} target passes")
    print("identical to plain generate:", torch.equal(out, model.generate(**inputs, **options)))


if __name__ == "__main__":
    main()
