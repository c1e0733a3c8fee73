"""Show text as it is accepted, several tokens at a time, and stop at a string.

python examples/streaming.py --model HuggingFaceTB/SmolLM2-135M-Instruct
"""

from example_models import arguments, load
from transformers import TextStreamer

import treespec


def main() -> None:
    args = arguments(__doc__)
    model, tokenizer = load(args.model)
    inputs = tokenizer(args.prompt, return_tensors="pt")

    speculation = treespec.TreeSpeculation([treespec.TokenRecycling(), treespec.SuffixLookup()], tokenizer=tokenizer)
    treespec.generate(
        model,
        inputs,
        speculation,
        streamer=TextStreamer(tokenizer),
        stop_strings=["\n\n"],
        max_new_tokens=args.new_tokens,
        do_sample=False,
    )
    print(f"mean acceptance length {speculation.stats.mean_acceptance_length:.2f}")


if __name__ == "__main__":
    main()
