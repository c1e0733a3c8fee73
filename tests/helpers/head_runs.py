"""Runs of heads whose trees are recorded, and their distributions compared with a slow plain reading of the files."""

from dataclasses import dataclass

import torch
from helpers import dflash_files, eagle3_files, eagle_files, medusa_files
from helpers.head_files import SPECULATORS
from helpers.tiny import prompt
from transformers import DynamicCache

from treespec import TreeSpeculation, load_drafter
from treespec.heads import Medusa
from treespec.hf.introspect import CACHE_NAME


@dataclass
class Proposed:
    """One step's trees and the texts that they continue."""

    trees: object
    texts: list
    row_ids: list


class Recorded:
    """Records what a drafter proposed; a mixin."""

    def start(self, session):
        super().start(session)
        self.steps = []

    def propose(self, max_depth):
        trees, history = super().propose(max_depth), self._session.history
        texts = [history.tokens(b).tolist() for b in range(history.num_rows)]
        self.steps.append(Proposed(trees, texts, list(self._session.row_ids)))
        return trees


def make(folder, target, made, format_name=SPECULATORS, seed=0, **options):
    """A recorded drafter of random files, and the plain reading of the same files.

    made: a shape of `medusa_files`, `dflash_files`, `eagle_files`, or `eagle3_files`, whose files leave open which
        hidden states they read.
    """
    if "medusa" in made:
        size = made["medusa"]["vocab_size"]
        ids = torch.randperm(64, generator=torch.Generator().manual_seed(seed))[:size] if size < 64 else None
        heads = medusa_files.random_heads(**made["medusa"], seed=seed, token_map=ids)
        return recording(Medusa)(heads), medusa_files.PlainMedusa(heads)
    if "block" in made:
        files, plain = dflash_files, dflash_files.PlainDFlash
    elif "is_eagle" in made:
        files, plain = eagle_files, eagle_files.PlainEagle
    else:
        files = eagle3_files
        plain = eagle3_files.PlainPEagle if "mask_token" in made else eagle3_files.PlainEagle3
    tensors = files.random_tensors(made, seed)
    folder = files.write(folder, made, tensors, format_name)
    loaded = load_drafter(folder, target, hidden_layers=made["hidden_layers"] if files is eagle3_files else None)
    return recording(type(loaded))(loaded.head, loaded.hidden_layers, **options), plain(made, tensors, target)


def recording(kind):
    """A kind of drafters, recorded."""
    return type(f"Recorded{kind.__name__}", (Recorded, kind), {})


def left_padded(lengths, seed=5):
    rows = [prompt(1, length, seed=seed + i)[0] for i, length in enumerate(lengths)]
    width = max(lengths)
    ids = torch.stack([torch.nn.functional.pad(row, (width - len(row), 0)) for row in rows])
    mask = torch.stack([torch.arange(width) >= width - len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask.long()}


def with_cache(target, ids):
    """Inputs whose cache holds the first six tokens."""
    cache = DynamicCache()
    with torch.no_grad():
        target(ids[:, :6], **{CACHE_NAME: cache})
    return {"input_ids": ids, CACHE_NAME: cache}


def run(target, drafter, inputs, num_new=12, do_sample=False, tree=8, **options):
    speculation = TreeSpeculation(drafter, tree=tree, seed=3)
    torch.manual_seed(0)
    out = target.generate(**inputs, max_new_tokens=num_new, do_sample=do_sample, custom_generate=speculation, **options)
    return out, speculation.stats


def check_distributions(target, drafter, plain, process=lambda text, logits: logits, first=0):
    """Every node's distribution, or its value where it was selected, against the plain reading.

    Returns the nodes compared.
    """
    count = 0
    for step in drafter.steps:
        for row, tree in enumerate(step.trees.trees):
            if tree.num_nodes == 1:
                continue
            text = step.texts[row]
            with torch.no_grad():
                states = target(torch.tensor([text]), output_hidden_states=True, use_cache=False).hidden_states
            fused = torch.cat([states[i][0, first : len(text) - 1] for i in drafter.hidden_layers], -1)
            distributions = {}
            for node in range(1, tree.num_nodes):
                parent = tree.parent_list[node]
                path = tuple(tree.token(i) for i in tree.path_to(parent)[1:])
                if path not in distributions:
                    logits = plain.logits(fused, text, path, first)
                    distributions[path] = process([*text, *path], logits).softmax(-1)
                distribution = distributions[path]
                if tree.draft_probs is None:
                    share = step.trees.values[row, node] / step.trees.values[row, parent]
                    torch.testing.assert_close(share.double(), distribution[tree.token(node)], atol=2e-5, rtol=2e-3)
                else:
                    siblings = tree.children(parent)
                    distribution = distribution.clone()
                    if bool(tree.is_without_replacement[node]):
                        distribution[[tree.token(i) for i in siblings[: siblings.index(node)]]] = 0
                    torch.testing.assert_close(
                        tree.draft_probs_of(node).double(), distribution / distribution.sum(), atol=2e-5, rtol=2e-3
                    )
                count += 1
    return count
