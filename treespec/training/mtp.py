"""MTP layers in training, unrolled on their own outputs, and written in Qwen's layout."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import UnsupportedModelError
from treespec.heads.mtp.drafter import Mtp
from treespec.heads.mtp.files import DRAFT_VOCAB, PARTS, QWEN
from treespec.heads.mtp.module import MtpHead, unroll
from treespec.hf.loading.formats import MTP
from treespec.hf.loading.heads import vocabulary_weights
from treespec.hf.loading.mtp import fresh_mtp, load_mtp
from treespec.training.data import Batch
from treespec.training.features import decoder_layers
from treespec.training.heads import SMALL, draft_ids, files_of
from treespec.training.objective import Draft, Learner, unrolled
from treespec.training.options import BLOCKS_ONLY, TrainingConfig, TrainingKind
from treespec.training.text.texts import Texts

NAMES = {f"{part}.weight": QWEN.tensor(part, 0) for part in PARTS}
"""The layout's names of what is not the decoder layer's."""


class MtpLearner(Learner):
    """One MTP layer in float32 for `Objective`; `num_depths` steps are unrolled."""

    _rows: Tensor

    def __init__(self, head: MtpHead, rows: Tensor, num_depths: int, hidden_layer: int) -> None:
        super().__init__()
        self.head, self.num_depths, self.target_ids = head, num_depths, head.target_ids
        self.reads = {"hidden_layers": [hidden_layer]}
        self.register_buffer("_rows", rows, persistent=False)

    @property
    def output_weight(self) -> Tensor:
        return self._rows

    def drafts(self, batch: Batch, generator: torch.Generator | None) -> list[Draft]:
        """See `Learner`. The state of a text's first token is used by the draft anchored at the second one."""
        states = batch.states[:, :-1].to(self._rows.dtype)
        num_depths = min(self.num_depths, states.shape[1])
        return unrolled(batch, unroll(self.head, batch.tokens[:, 1:], states, num_depths))

    def save(self, folder: Path, name: str | None, dtype: torch.dtype) -> None:
        """Write the layer in Qwen's layout, for `load_mtp(model, folder)`."""
        folder.mkdir(parents=True, exist_ok=True)
        layer = self.head.layers[0]
        state = layer.state_dict()
        if layer.is_hidden_first:  # Qwen's layout has the embedding first.
            state["projection.weight"] = state["projection.weight"].roll(state["projection.weight"].shape[0], 1)
        tensors = {
            NAMES.get(key) or key.replace("blocks.", "mtp.layers."): weight.detach().to("cpu", dtype).contiguous()
            for key, weight in state.items()
        }
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        (folder / DRAFT_VOCAB).write_text(json.dumps(self.target_ids.tolist()), encoding="utf-8")


@torch.no_grad()
def _make(model: PreTrainedModel, texts: Texts, config: TrainingConfig) -> MtpLearner:
    files = files_of(config)
    trained = None if files is None else _trained(model, files)
    head = _fresh(model, config) if trained is None else trained.float()
    output = vocabulary_weights(model)[1].detach()
    head.target_ids = draft_ids(model, texts, config, trained).to(output.device)
    head.rows = None
    rows = output[head.target_ids].float()
    return MtpLearner(head.train(), rows, config.depths, model.config.get_text_config().num_hidden_layers)


def _trained(model: PreTrainedModel, files: str) -> MtpHead:
    """The layer of trained files. Raises `UnsupportedModelError`: it cannot be written in Qwen's layout."""
    head = load_mtp(model, None if files == MTP else files).head
    names = [name for name, _ in head.named_parameters()]
    for problem, is_there in (
        (f"{head.config.num_layers} layers", head.config.num_layers > 1),
        ("experts", any(".experts." in name for name in names)),
        ("several decoder layers", any("blocks.1." in name for name in names)),
        ("no last norm", "layers.0.norm.weight" not in names),
    ):
        if is_there:
            raise UnsupportedModelError(f"the MTP layers of {files} are not trained further: they have {problem}")
    return head


def _fresh(model: PreTrainedModel, config: TrainingConfig) -> MtpHead:
    """The target's last layer with attention over all tokens, next to its last norm and a new projection.

    With `is_initialised` the projection passes the state, else all weights are random.

    Raises `UnsupportedModelError`: the target has no such layer, or one of experts, which this layout has under other
    names.
    """
    weights = _last_attention(model)
    size = model.config.get_text_config().hidden_size
    projection = nn.Linear(2 * size, size, bias=False, device="cpu", dtype=torch.float32).weight.detach()
    if config.is_initialised:
        projection *= SMALL
        projection[:, size:] += torch.eye(size, device="cpu", dtype=torch.float32)
    head = fresh_mtp(model, weights, projection)
    head.float()
    if not config.is_initialised:
        for weight in head.layers.parameters():
            if weight.ndim > 1:
                weight.normal_(std=model.config.get_text_config().initializer_range)
    return head


def _last_attention(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights of the target's last layer with attention."""
    layers = [dict(layer.state_dict()) for layer in decoder_layers(model)]
    found = [layer for layer in layers if any("self_attn." in name for name in layer)]
    if not found or any(".experts." in name for name in found[-1]):
        raise UnsupportedModelError(
            f"MTP layers are trained for models with attention and one MLP per layer, {type(model).__name__} has others"
        )
    return {name: weight.detach().cpu().clone() for name, weight in found[-1].items()}


UNUSED = (*BLOCKS_ONLY, "hidden_layers", "num_layers")
LOAD = 'treespec.load_mtp(model, "THIS FOLDER")'
KIND = TrainingKind("MTP layer", _make, 4, 1, UNUSED, load=LOAD, files="*.safetensors", own=MTP, drafter=Mtp)
