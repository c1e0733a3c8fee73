"""Answers that follow a JSON schema: by xgrammar, along the branches of a tree, with the text that must follow drafted.

python examples/json_schema.py --model HuggingFaceTB/SmolLM2-135M-Instruct
"""

import json

import torch
import xgrammar
from example_models import arguments, load
from transformers import LogitsProcessorList

import treespec
from treespec.grammars import GrammarProcessor

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "profession": {"enum": ["engineer", "teacher", "fisherman"]},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["name", "profession", "age"],
    "additionalProperties": False,
}


def main() -> None:
    args = arguments(__doc__)
    model, tokenizer = load(args.model)
    end = tokenizer.eos_token_id
    if end is None:  # The tiny model has no end of text of its own.
        end = tokenizer.convert_tokens_to_ids("~")
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=model.config.vocab_size, stop_token_ids=[end])
    # One line of JSON without free white space: what must follow is known.
    grammar = xgrammar.GrammarCompiler(info).compile_json_schema(json.dumps(SCHEMA), any_whitespace=False)
    options = {"max_new_tokens": 100, "eos_token_id": end, "pad_token_id": tokenizer.pad_token_id, "do_sample": False}
    options["logits_processor"] = LogitsProcessorList([GrammarProcessor(grammar)])
    inputs = tokenizer(args.prompt, return_tensors="pt")

    # With the tokenizer, text that must follow is drafted although other tokens would spell it too.
    speculation = treespec.TreeSpeculation(
        [treespec.TokenRecycling(), treespec.SuffixLookup()], tree=16, tokenizer=tokenizer
    )
    out = model.generate(**inputs, **options, custom_generate=speculation)
    answer = out[0, inputs["input_ids"].shape[1] :]
    print(json.loads(tokenizer.decode(answer[:-1])))
    print("identical to plain generate:", torch.equal(out, model.generate(**inputs, **options)))
    print(f"{speculation.stats.num_emitted_tokens} tokens in {speculation.stats.num_target_passes} passes")


if __name__ == "__main__":
    main()
