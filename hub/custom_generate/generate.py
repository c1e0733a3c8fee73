"""Tree speculation as a `custom_generate` repository: upload this folder to a hub model repository and call

model.generate(**inputs, custom_generate="you/your-repository", trust_remote_code=True, assistant_model=draft)
"""

import treespec
from treespec.hf import make_draft_model


def generate(
    model,
    inputs=None,
    generation_config=None,
    assistant_model=None,
    assistant_tokenizer=None,
    streamer=None,
    tokenizer=None,
    stop_strings=None,
    tree=16,
    verification="auto",
    drafter=None,
    seed=None,
    **kwargs,
):
    """The function that transformers calls with the caller's raw arguments.

    `assistant_model` is the draft model, `assistant_tokenizer` its tokenizer if it has another one; without it, and
    without a `drafter`, token recycling and suffix lookup draft. `streamer`, `tokenizer` and `stop_strings` work as in
    plain `generate`.
    """
    if drafter is None and assistant_model is not None and assistant_tokenizer is not None:
        drafter = make_draft_model(assistant_model, tokenizer=assistant_tokenizer, target_tokenizer=tokenizer)
    drafter = drafter or assistant_model or [treespec.TokenRecycling(), treespec.SuffixLookup()]
    speculation = treespec.TreeSpeculation(drafter, tree=tree, verification=verification, seed=seed)
    given = {name: value for name, value in kwargs.items() if value is not None}
    return treespec.generate(
        model,
        inputs,
        speculation,
        streamer=streamer,
        tokenizer=tokenizer,
        stop_strings=stop_strings,
        generation_config=generation_config,
        **given,
    )
