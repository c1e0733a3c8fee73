"""Forward hooks that the caller registered: output is plain `generate`'s, by trees where they treat tokens alike."""

from functools import partial
from typing import Any

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from helpers.tiny import identical, lookups, tiny_llama
from torch import nn

from treespec import TreeSpeculation
from treespec.errors import TreespecWarning, UnsupportedModelError
from treespec.hf.introspect import CACHE_NAME, model_facts
from treespec.hf.models import generate_check
from treespec.hf.own_hooks import own_hooks, own_modules

PROMPT = torch.randint(1, 64, (1, 10), generator=torch.Generator().manual_seed(0))
OPTIONS: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


class Steering:
    """Adds a vector to what a layer returns, at chosen positions of chosen passes."""

    def __init__(self, size: int) -> None:
        self.vector = torch.randn(size, generator=torch.Generator().manual_seed(3)) * 0.5

    def everywhere(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output + self.vector

    def last_position(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[:, -1] += self.vector
        return output

    def in_place(self, module: nn.Module, args: Any, output: torch.Tensor) -> None:
        output[:, -1] += self.vector

    def single_tokens(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output + self.vector if output.shape[1] == 1 else output

    def prompts(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output if output.shape[1] == 1 else output + 4 * self.vector

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        first, *others = args or (kwargs.pop("hidden_states"),)
        return (self.last_position(module, (), first), *others), kwargs

    def one_token_only(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        if output.shape[1] not in (1, PROMPT.shape[1], 8):
            raise RuntimeError("a pass of one token was expected")
        return self.single_tokens(module, args, output)

    def __call__(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        return self.last_position(module, args, output)


class Wrapped(nn.Module):
    """A module around a layer, as libraries of steering vectors have it."""

    def __init__(self, inner: nn.Module, change: Any) -> None:
        super().__init__()
        self.inner, self.change = inner, change

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.change(self.inner, args, self.inner(*args, **kwargs))


def attach(model: Any, kind: str, where: str = "hook") -> Any:
    """Registers a hook, or puts a module of one's own in place of a layer, of a part of it, or of its class."""
    steering, layers, layer = Steering(model.config.hidden_size), model.model.layers, model.model.layers[0]
    others = {"object": steering, "partial": partial(steering.last_position)}
    change: Any = others[kind] if kind in others else getattr(steering, kind)
    if kind == "before":
        return layer.register_forward_pre_hook(change, with_kwargs=True)
    if where == "hook":
        return layer.register_forward_hook(change)
    if where == "layer":
        layers[0] = Wrapped(layer, change)
    elif where == "part":
        layer.mlp = Wrapped(layer.mlp, change)
    else:
        own: Any = type(layer)
        forward = lambda self, *args, **kwargs: change(self, args, own.forward(self, *args, **kwargs))  # noqa: E731
        layer.__class__ = type("Own", (own,), {"forward": forward, "__module__": "own"})
    return None


def decoded(model: Any, speculation: TreeSpeculation | None = None, **options: Any) -> torch.Tensor:
    return model.generate(PROMPT, **OPTIONS | options, custom_generate=speculation)


@pytest.mark.filterwarnings("ignore::treespec.TreespecWarning")
@pytest.mark.parametrize(
    ("where", "kind", "is_late"),
    [("hook", "in_place", False), ("hook", "single_tokens", False), ("hook", "prompts", False),
     ("hook", "before", False), ("hook", "one_token_only", False), ("hook", "object", False),
     ("hook", "partial", False), ("hook", "last_position", True), ("hook", "everywhere", True),
     ("layer", "single_tokens", False), ("layer", "everywhere", True), ("part", "last_position", True),
     ("class", "last_position", True), ("class", "everywhere", False)],
)  # fmt: skip
def test_hooks_that_look_at_a_pass_decode_plainly(where, kind, is_late):
    """Modules of one's own too; those that treat all tokens alike decode by trees."""
    model, speculation = tiny_llama(), lookups()
    without = decoded(model)
    if is_late:
        decoded(model, speculation)
    handle = attach(model, kind, where)
    assert not torch.equal(decoded(model), without), "the hook does something"
    stats = identical(model, PROMPT, speculation, times=2, **OPTIONS)
    assert bool(stats.num_draft_tokens) == (kind == "everywhere")
    if handle is not None:
        handle.remove()
        assert identical(model, PROMPT, speculation, times=2, **OPTIONS).num_draft_tokens > 0


@pytest.mark.parametrize("is_module", [False, True])
def test_hooks_and_modules_are_named(is_module):
    model = tiny_llama()
    attach(model, "single_tokens", "layer" if is_module else "hook")
    named = r"modules of other packages \(Wrapped at" if is_module else r"forward hooks \(single_tokens on"
    expected = rf"one token at a time because of {named} model.layers.0\): passes over several"
    with pytest.warns(TreespecWarning, match=expected):
        decoded(model, lookups())


@pytest.mark.filterwarnings("ignore::treespec.TreespecWarning")
def test_a_filled_cache_is_refused_by_name():
    model = tiny_llama()
    cache = model(PROMPT[:, :4])[CACHE_NAME]
    attach(model, "single_tokens")
    with pytest.raises(UnsupportedModelError, match=r"no filled cache .*single_tokens on"):
        decoded(model, lookups(), **{CACHE_NAME: cache})


def test_a_set_of_hooks_is_measured_once(monkeypatch):
    measured = []
    difference = generate_check._difference
    monkeypatch.setattr(generate_check, "_difference", lambda *args: measured.append(1) or difference(*args))
    model, speculation, steering = tiny_llama(), lookups(), Steering(32)
    counts = []
    for layer in (0, 0, 1, 0):
        handle = model.model.layers[layer].register_forward_hook(steering.everywhere)
        for _ in range(2):
            decoded(model, speculation)
        counts.append(len(measured))
        handle.remove()
    assert counts == [1, 1, 2, 2]


def test_hooks_for_all_modules_count_and_those_of_libraries_do_not():
    model = tiny_llama()
    assert not model_facts(model).hooks
    model.enable_input_require_grads()
    nn.utils.parametrizations.weight_norm(model.model.layers[0].mlp.up_proj)
    assert not own_hooks(dict(model.named_modules()))
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert list(own_hooks(dict(model.named_modules())).values()) == ["<lambda> on all modules"]
    finally:
        handle.remove()


@pytest.mark.filterwarnings("ignore::treespec.TreespecWarning")
def test_half_precision_decodes_plainly_unless_the_hook_says_that_it_serves_trees():
    """Rounding hides what a hook does: nothing is compared."""
    model, speculation, steering = tiny_llama().bfloat16(), lookups(), Steering(32)
    vector = steering.vector = steering.vector.bfloat16() * 0.1
    model.model.layers[0].register_forward_hook(steering.everywhere)
    assert identical(model, PROMPT, speculation, **OPTIONS).num_draft_tokens == 0

    def declared(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output + vector

    vars(declared)["serves_trees"] = True
    other = tiny_llama().bfloat16()
    other.model.layers[0].register_forward_hook(declared)
    assert own_hooks(dict(other.named_modules())) == {}
    decoded(other, speculation)
    assert speculation.stats.num_draft_tokens > 0


@pytest.mark.filterwarnings("ignore::treespec.TreespecWarning")
@pytest.mark.parametrize("kind", ["accelerate", "forward"])
def test_hooks_beyond_the_tables_are_seen(kind):
    model = tiny_llama()
    layer, steering = model.model.layers[0], Steering(model.config.hidden_size)

    class Own(ModelHook):
        def post_forward(self, module: nn.Module, output: Any) -> Any:
            return steering.last_position(module, (), output)

    if kind == "accelerate":
        add_hook_to_module(layer, Own())
    else:
        own = layer.forward
        layer.forward = lambda *args, **kwargs: steering.last_position(layer, args, own(*args, **kwargs))
    found = own_hooks(dict(model.named_modules())).values()
    assert [name.rpartition(" on ")[2] for name in found] == ["model.layers.0"]
    assert identical(model, PROMPT, **OPTIONS).num_draft_tokens == 0


@pytest.mark.filterwarnings("ignore::treespec.TreespecWarning")
def test_modules_in_half_precision_are_compared_up_to_rounding():
    """Kernels of a library that is not known must not cost the trees."""
    for kind, has_drafts in (("everywhere", True), ("single_tokens", False)):
        model, speculation = tiny_llama().bfloat16(), lookups()
        change = getattr(Steering(model.config.hidden_size), kind)
        change.__self__.vector = 2 * change.__self__.vector.bfloat16()
        model.model.layers[0] = Wrapped(model.model.layers[0], change)
        decoded(model, speculation)
        assert bool(speculation.stats.num_draft_tokens) == has_drafts


def test_modules_of_a_model_of_ones_own_are_its_own():
    own = type("OwnModel", (nn.Module,), {"__module__": "research.models"})()
    own.layer = type("OwnLayer", (nn.Module,), {"__module__": "research.layers"})()
    assert own_modules(dict(own.named_modules())) == {}
    own.other = type("Foreign", (nn.Module,), {"__module__": "steering"})()
    assert list(own_modules(dict(own.named_modules())).values()) == ["Foreign at other"]
    type(own.other).serves_trees = True
    assert own_modules(dict(own.named_modules())) == {}
