"""Which tensors of an architecture are filtered: the convolutions of its feature extractor.

The decision is read off the flow of data, never off a name. ``torch.fx`` follows ``forward``
symbolically, so no input is needed; a submodule that cannot be followed stays one opaque call and
its children are followed on their own. A convolution is taken unless it is

shortcut    one arm of a sum whose other arm leaves the same tensor and convolves more; the arm is
            a single 1x1 convolution, or holds no activation. Where ``forward`` cannot be followed:
            a 1x1 convolution that maps the channels its siblings map as a chain.
transition  it reads a finished stage (a sum or concatenation, through norms and activations), more
            convolutions follow, and it is 1x1 and all of it goes into a pooling (DenseNet), or its
            stride is its kernel (the downsampling of ConvNeXt).
dense       the last spatial kernel, without padding and wider than the one before it, and the 1x1
            convolutions that follow: a classifier's dense layers (VGG as timm writes it).
gate        it reads globally pooled features: squeeze-and-excitation, or a dense layer in disguise.
attention   a 1x1 convolution right before or after a product of activations.
head        1x1, and no layer with weights and no sum comes after it (SqueezeNet, segmentation).
transposed  it upsamples.

Everything else that convolves counts: 1x1 bottlenecks, depthwise kernels, parallel branches, the
stem, and a linear layer on a map whose channels were moved last, which convolves 1x1 (ConvNeXt). A
model that contains attention and holds more weights in linear layers than in convolutions is a
transformer: of it, only the layer first applied to the image is taken, be it a convolution or a
linear layer on unfolded patches. Other linear layers, embeddings, norms and biases are never taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from specgrad_kernels import flow
from specgrad_kernels.flow import Flow, kernels_of, kernels_within
from specgrad_kernels.tracing import trace

Selector = str | Sequence[str] | Callable[[str, nn.Parameter], bool]
PRESETS = ("auto", "paper_default", "spatial_only", "all_conv")


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The rows of a table as lines."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


@dataclass(frozen=True, eq=False)
class Selection:
    """The parameters taken, in the model's order, and for every parameter the reason.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 10))
    >>> print(select_layers(model))
    parameter  taken  shape    reason
    0.weight   yes    8x3x3x3  convolution
    0.bias     no              bias
    2.weight   no              classifier head
    2.bias     no              bias
    1 of 4 tensors taken, 216 weights
    """

    taken: dict[str, nn.Parameter]
    reasons: dict[str, str]

    def __str__(self) -> str:
        rows = [("parameter", "taken", "shape", "reason")]
        for name, reason in self.reasons.items():
            taken = self.taken.get(name)
            shape = "" if taken is None else "x".join(map(str, taken.shape))
            rows.append((name, "no" if taken is None else "yes", shape, reason))
        lines = aligned(rows)
        weights = sum(parameter.numel() for parameter in self.taken.values())
        lines.append(f"{len(self.taken)} of {len(self.reasons)} tensors taken, {weights:,} weights")
        return "\n".join(lines)


def select_layers(model: nn.Module, select: Selector = "auto") -> Selection:
    """Choose the parameters of ``model`` whose gradients are filtered.

    select: ``"auto"`` or ``"paper_default"``: the rule above; ``"spatial_only"``: of those only
        kernels larger than 1x1; ``"all_conv"``: every convolution; any other string: a regular
        expression searched in the parameter's name; a list of names; or a callable
        ``(name, parameter) -> bool``.

    Frozen parameters are never taken, and tied ones appear once, under their first name.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3))
    >>> list(select_layers(model, "spatial_only").taken)
    ['0.weight', '2.weight']
    >>> list(select_layers(model, r"^1\\.").taken)
    ['1.weight', '1.bias']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        if is_lazy(parameter):
            raise ValueError(
                f"model has the uninitialised lazy parameter {name!r}; run one forward pass first"
            )
    decide = _decision(model, select)
    taken, reasons = {}, {}
    for name, parameter in named.items():
        take, reasons[name] = decide(name, parameter)
        if take and not parameter.requires_grad:
            reasons[name] = f"frozen (requires_grad is False); otherwise taken: {reasons[name]}"
        elif take:
            taken[name] = parameter
    if not taken:
        frozen = sum(not parameter.requires_grad for parameter in named.values())
        raise ValueError(
            f"select={select!r} takes none of the model's {len(named)} parameters ({frozen} of "
            "them frozen); pass a regular expression or a callable that names the layers, "
            f"a list of their names, or one of {', '.join(PRESETS)}"
        )
    return Selection(taken, reasons)


def _decision(model: nn.Module, select: Selector) -> Callable[..., tuple[bool, str]]:
    if isinstance(select, str) and select in PRESETS:
        return _Structure(model, select).decide
    takes: Callable[[str, nn.Parameter], Any]
    if isinstance(select, str):
        try:
            pattern = re.compile(select)
        except re.error as error:
            raise ValueError(
                f"select={select!r} is no regular expression ({error}); escape it with re.escape, "
                f"or use one of {', '.join(PRESETS)}"
            ) from None
        takes, why = lambda name, parameter: pattern.search(name), f"matches {select!r}"
        why_not = f"does not match {select!r}"
    elif isinstance(select, (list, tuple, set, frozenset)):
        unknown = sorted(set(select) - {name for name, _ in model.named_parameters()})
        if unknown:
            raise ValueError(
                f"select names {unknown[0]!r}, which is no parameter of the model; "
                "print(select_layers(model, 'all_conv')) lists them"
            )
        takes, why, why_not = lambda name, parameter: name in select, "listed", "not listed"
    elif callable(select):
        takes, why, why_not = select, "chosen by the callable", "not chosen by the callable"
    else:
        raise TypeError(
            f"select must be one of {', '.join(PRESETS)}, a regular expression, a list of names or "
            "a callable "
            f"(name, parameter) -> bool; got {select!r} of type {type(select).__name__}"
        )
    return lambda name, parameter: (True, why) if takes(name, parameter) else (False, why_not)


class _Structure:
    """Role of every parameter of a model."""

    def __init__(self, model: nn.Module, preset: str) -> None:
        self.model = model
        self.preset = preset
        self.kernels = {id(k.parameter): k for k in kernels_within(model)}
        self.owners = {
            id(parameter): module
            for module in reversed(list(model.modules()))
            for parameter in module.parameters(recurse=False)
        }
        self.flows: list[Flow] = []
        self.unfollowed: list[nn.Module] = []
        self._follow(model, set())
        self.excluded = self._excluded()
        self.heads = self._heads()
        self.patches = self._patch_embedding() if self._is_transformer() else None
        if self.patches is not None:
            self.kernels = {k: v for k, v in self.kernels.items() if not v.linear}

    def _follow(self, module: nn.Module, seen: set[int]) -> None:
        if id(module) in seen or next(module.parameters(), None) is None:
            return
        seen.add(id(module))
        graph, opaque = trace(module)
        if graph is not None:
            whole = len(list(module.parameters())) == len(self.owners)
            self.flows.append(Flow(module, graph, whole))
        for part in opaque:
            self.unfollowed.append(part)
            for child in part.children():
                self._follow(child, seen)

    def _excluded(self) -> dict[int, str]:
        """Reasons by parameter; a shared kernel is excluded only where every use of it is."""
        uses: dict[int, list[str | None]] = {}
        forced = {
            id(kernel.parameter): flow.SHORTCUT_BY_SHAPE
            for kernel in map(flow.shortcut_by_shape, self.unfollowed)
            if kernel is not None
        }
        last = self._last_kernel()
        for each in self.flows:
            reasons = each.excluded(last)
            for node, kernels in each.kernels.items():
                for kernel in kernels:
                    if each.role[node] == "conv":
                        # functional ones, and linear layers that convolve, are known from here
                        self.kernels.setdefault(id(kernel.parameter), kernel)
                        uses.setdefault(id(kernel.parameter), []).append(reasons.get(node))
                    elif node in reasons:
                        forced[id(kernel.parameter)] = reasons[node]
        excluded = {key: why[0] for key, why in uses.items() if why[0] and all(why)}
        return excluded | forced

    def _last_kernel(self) -> int | None:
        """The kernel registered last, if it is not the only one and no linear layer follows."""
        layers = [m for m in self.model.modules() if kernels_of(m) or isinstance(m, nn.Linear)]
        kernels = kernels_of(layers[-1]) if len(layers) > 1 else []
        return id(kernels[0].parameter) if kernels else None

    def _heads(self) -> set[int]:
        """Linear layers that no other layer with weights comes after."""
        heads: set[int] = set()
        for each in self.flows:
            for node in each.with_role("linear") if each.whole else ():
                if node in each.called and not any(map(each.weighted, each.after(node))):
                    heads.update(map(id, each.called[node].parameters()))
        return heads

    def _is_transformer(self) -> bool:
        modules = list(self.model.modules())
        convolved = sum(
            kernel.parameter.numel() for kernel in self.kernels.values() if not kernel.linear
        )
        linear = sum(
            parameter.numel()
            for module in modules
            if isinstance(module, (nn.Linear, nn.MultiheadAttention))
            for parameter in module.parameters(recurse=False)
        )
        # equal linear layers side by side are attention only if something can multiply them
        multiplies = any(each.with_role("product") for each in self.flows)
        own = [module for module in modules if isinstance(module, nn.MultiheadAttention)]
        suspects = modules if multiplies else [*self.unfollowed, *own]
        return linear > convolved and (
            any(each.attends() for each in self.flows)
            or any(map(flow.looks_like_attention, suspects))
        )

    def _patch_embedding(self) -> set[int]:
        for each in self.flows:
            if each.whole:
                return set(map(id, each.first_layers()))
        if self.kernels:
            return {next(iter(self.kernels))}
        linear = flow.first_linear(self.model)
        return set() if linear is None else {id(linear)}

    def decide(self, name: str, parameter: nn.Parameter) -> tuple[bool, str]:
        """Decide if the preset takes the parameter, with the reason."""
        take, reason = self._verdict(parameter)
        kernel = self.kernels.get(id(parameter))
        if kernel and self.preset == "all_conv" and not take:
            return True, f"{reason}, taken by all_conv"
        if kernel and self.preset == "spatial_only" and take and kernel.pointwise:
            return False, "1x1 kernel, left out by spatial_only"
        return take, reason

    def _verdict(self, parameter: nn.Parameter) -> tuple[bool, str]:
        """Decide if the paper's rule takes the parameter, with the reason."""
        key = id(parameter)
        if self.patches is not None and key in self.patches:
            return True, "patch embedding"
        if key not in self.kernels:
            return False, self._reason_of_other(parameter)
        if self.patches is not None:
            return False, flow.NOT_PATCHES
        if key in self.excluded:
            return False, self.excluded[key]
        if self.kernels[key].linear:
            return True, "linear layer of a channels-last map: a 1x1 convolution"
        return True, "1x1 convolution" if self.kernels[key].pointwise else "convolution"

    def _reason_of_other(self, parameter: nn.Parameter) -> str:
        owner = self.owners[id(parameter)]
        if isinstance(owner, flow.EMBEDDINGS):
            return flow.EMBEDDING
        if isinstance(owner, flow.NORMS) or flow.is_scale(owner):
            return "norm or scale"
        if parameter.dim() == 1 and isinstance(owner, flow.LAYERS):
            return "bias"
        if isinstance(owner, nn.Linear):
            return flow.HEAD if id(parameter) in self.heads else "linear layer"
        if isinstance(owner, nn.MultiheadAttention):
            return "attention weight"
        return "recurrent weight" if isinstance(owner, nn.RNNBase) else flow.OTHER
