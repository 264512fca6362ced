"""Data flow through a traced model, and the role of each convolution."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional
from torch.nn.modules import activation, batchnorm, pooling

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CONVOLVING = (*_CONVOLUTIONS, *_TRANSPOSED)
NORMS = (batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_POOLS = tuple(getattr(pooling, name) for name in pooling.__all__)
LAYERS = (*_CONVOLVING, *NORMS, *EMBEDDINGS, *_POOLS, nn.Linear, nn.MultiheadAttention)
_LINEAR_MAPS = (*NORMS, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_ACTIVATE = ("dropout", "relu", "gelu", "silu", "elu", "hardswish", "mish")
_SAMPLEWISE = (
    *(getattr(activation, name) for name in activation.__all__),
    *(getattr(functional, name) for name in _ACTIVATE),
    *(operator.mul, torch.mul, "mul", torch.relu, torch.sigmoid, torch.tanh),
)

_POOL = tuple(getattr(functional, name) for name in dir(functional) if "_pool" in name)
_ATTEND = functional.scaled_dot_product_attention
_PRODUCT = (torch.matmul, torch.bmm, torch.baddbmm, torch.einsum, operator.matmul, "matmul", "bmm")
_OPERATIONS: dict[str, tuple[Any, ...]] = {
    "conv": (*_CONVOLVING, functional.conv1d, functional.conv2d, functional.conv3d),
    "linear": (nn.Linear, functional.linear),
    "embedding": EMBEDDINGS,
    "linear map": _LINEAR_MAPS,
    "sum": (operator.add, operator.iadd, torch.add, "add", "add_"),
    "product": (*_PRODUCT, _ATTEND),
    "join": (torch.cat, torch.concat, torch.concatenate),
    "size": ("size", "dim", "numel"),
}
"""Classes of modules, functions and names of methods, by what they do."""
_SOFTMAX = (nn.Softmax, functional.softmax, torch.softmax, "softmax", _ATTEND)
_REDUCE = (torch.mean, torch.amax, torch.max, "mean", "amax", "max")
_PERMUTE = (torch.permute, "permute")
_SHAPED_LIKE = ("view_as", "reshape_as", "expand_as", "type_as")

SHORTCUT = "shortcut projection"
SHORTCUT_BY_SHAPE = f"{SHORTCUT} (by its shape)"
EMBEDDING = "embedding"
TRANSITION = "transition between stages"
DENSE = "dense layer of the classifier, written as a convolution"
GATE = "convolution of globally pooled features (gate or head)"
ATTENTION = "attention projection"
HEAD = "classifier head"
TRANSPOSED = "transposed convolution: upsampling"
OTHER = "token, position, scale or other tensor that convolves nothing"
NOT_PATCHES = "convolution of a transformer, not its patch embedding"


@dataclass(frozen=True)
class _Kernel:
    """The weight of one convolution."""

    parameter: nn.Parameter
    size: tuple[int, ...]
    stride: tuple[int, ...]
    channels: tuple[int, int]
    padded: bool = False
    linear: bool = False

    @property
    def pointwise(self) -> bool:
        return all(extent == 1 for extent in self.size)


def kernels_of(module: nn.Module) -> list[_Kernel]:
    """The kernel of a convolution; under weight or spectral norm, the tensor it is made from."""
    if not isinstance(module, _CONVOLVING):
        return []
    channels = (module.in_channels, module.out_channels)
    rows, columns = channels if isinstance(module, _TRANSPOSED) else reversed(channels)
    shape = (rows, columns // module.groups, *module.kernel_size)
    padded = any(pad not in (0, "valid") for pad in _each(module.padding))
    use = (module.kernel_size, module.stride, channels, padded)
    return [_Kernel(p, *use) for p in module.parameters() if tuple(p.shape) == shape]


def kernels_within(module: nn.Module) -> list[_Kernel]:
    return [kernel for inner in module.modules() for kernel in kernels_of(inner)]


def is_scale(module: nn.Module) -> bool:
    """Norms and scales written by hand: no children, and vectors for parameters."""
    parameters = list(module.parameters())
    return (
        bool(parameters)
        and not list(module.children())
        and all(p.dim() < 2 or p.numel() == max(p.shape) for p in parameters)
    )


class Flow:
    """The data flow of one traced module.

    whole: the module holds all of the model's parameters, so its input and output are the model's.
    role: what each node does; ``inputs``: the nodes whose activations it reads, without sizes
    and weights; ``behind``: the ``bit`` of the node and of all nodes that it depends on.
    """

    def __init__(self, module: nn.Module, graph: fx.Graph, whole: bool) -> None:
        self.module = module
        self.whole = whole
        self.nodes = list(graph.nodes)
        self.bit = {node: 1 << index for index, node in enumerate(self.nodes)}
        self.role: dict[fx.Node, str] = {}
        self.inputs: dict[fx.Node, list[fx.Node]] = {}
        self.behind: dict[fx.Node, int] = {}
        self.kernels: dict[fx.Node, list[_Kernel]] = {}
        self.called = {
            node: module.get_submodule(str(node.target))
            for node in self.nodes
            if node.op == "call_module"
        }
        for node in self.nodes:
            inputs = [i for i in node.all_input_nodes if self.role[i] not in ("constant", "size")]
            # these read only the shape or type of their second operand
            inputs = inputs[:1] if node.target in _SHAPED_LIKE else inputs
            self.inputs[node] = inputs
            self.role[node] = self._role_of(node, len(inputs))
            self.behind[node] = self.bit[node]
            for source in inputs:
                self.behind[node] |= self.behind[source]
            self.kernels[node] = self._kernels_at(node)

    def _is(self, node: fx.Node, operations: tuple[Any, ...]) -> bool:
        if node not in self.called:
            return node.target in operations
        return isinstance(self.called[node], tuple(o for o in operations if isinstance(o, type)))

    def _role_of(self, node: fx.Node, inputs: int) -> str:
        if node.op in ("placeholder", "output"):
            return node.op
        if inputs == 0:
            return "constant"
        if node.target is getattr and node.args[1] in ("shape", "ndim", "device", "dtype"):
            return "size"
        if self._is(node, (*_POOLS, *_POOL)):
            return self._role_of_pool(node)
        if self._is(node, _REDUCE):
            reduced = _each(_argument(node, 1, "dim", "axis"))
            return "global pool" if all(dim in (2, 3, 4, -1, -2) for dim in reduced) else "other"
        roles = (role for role, those in _OPERATIONS.items() if self._is(node, those))
        role = next(roles, "other")
        called = self.called.get(node)
        if role == "linear" and called is not None and self._reads_channels_last(node):
            return "conv"
        if role in ("sum", "product") and inputs == 1 and node.target is not _ATTEND:
            return "other"  # with a constant; attention may be that of a tensor to itself
        if role == "other" and called is not None and any(True for _ in called.parameters()):
            return "linear map" if is_scale(called) else "opaque"
        return role

    def _role_of_pool(self, node: fx.Node) -> str:
        """A pooling to one value is global; so is one whose window is computed from the input."""
        size = _argument(node, 1, "output_size", "kernel_size")
        size = getattr(self.called.get(node), "output_size", size)
        adaptive = node in self.called or "adaptive" in getattr(node.target, "__name__", "")
        whole = any(s == 1 if adaptive else isinstance(s, fx.Node) for s in _each(size))
        return "global pool" if whole else "pool"

    def _reads_channels_last(self, node: fx.Node) -> bool:
        """A linear layer on a map whose channels were moved last convolves it 1x1 (ConvNeXt)."""
        for read in self.before(node):
            if self._is(read, _PERMUTE):
                dims = read.args[1:] or (read.kwargs.get("dims"),)
                dims = _each(dims[0]) if len(dims) == 1 else dims
                return len(dims) > 3 and dims == (0, *range(2, len(dims)), 1)
            if self.role[read] != "linear map" and not self._is(read, _SAMPLEWISE):
                return self.role[read] == "conv" and self._is(read, (nn.Linear,))
        return False

    def _kernels_at(self, node: fx.Node) -> list[_Kernel]:
        if node.op == "call_module":
            called = self.called[node]
            if isinstance(called, nn.Linear) and self.role[node] == "conv":
                channels = (called.in_features, called.out_features)
                weights = [p for p in called.parameters() if tuple(p.shape) == channels[::-1]]
                return [_Kernel(each, (1, 1), (1, 1), channels, linear=True) for each in weights]
            return kernels_within(called)
        if self.role[node] != "conv":
            return []
        stride = _each(_argument(node, 3, "stride") or 1)
        padded = any(pad not in (0, "valid", None) for pad in _each(_argument(node, 4, "padding")))
        kernels = []
        for weight in self._parameters_behind(node):
            outputs, inputs, *size = weight.shape
            strides = (stride * len(size))[: len(size)]
            kernels.append(_Kernel(weight, tuple(size), strides, (inputs, outputs), padded))
        return kernels

    def _parameters_behind(self, node: fx.Node) -> Iterator[nn.Parameter]:
        """The kernels a functional convolution uses, possibly standardised on the way."""
        constants = [i for i in node.all_input_nodes if self.role[i] == "constant"]
        for constant in constants:
            if constant.op == "get_attr":
                value = operator.attrgetter(str(constant.target))(self.module)
                if isinstance(value, nn.Parameter) and value.dim() > 2:
                    yield value
            yield from self._parameters_behind(constant)

    def weighted(self, node: fx.Node) -> bool:
        return self.role[node] in ("conv", "linear", "embedding", "opaque")

    def before(self, node: fx.Node) -> Iterator[fx.Node]:
        """Inputs of a node, back through norms, activations and reshapes to its source."""
        while len(self.inputs[node]) == 1:
            node = self.inputs[node][0]
            yield node
            if self.role[node] not in ("other", "linear map"):
                return

    def source(self, node: fx.Node) -> fx.Node:
        """The last node of ``before``, or the node itself if it reads several."""
        return [node, *self.before(node)][-1]

    def after(self, node: fx.Node) -> list[fx.Node]:
        """All nodes that depend on the node."""
        _, *later = (each for each in self.nodes if self.behind[each] & self.bit[node])
        return later

    def with_role(self, role: str) -> list[fx.Node]:
        return [node for node in self.nodes if self.role[node] == role]

    def attends(self) -> bool:
        """Return True if a product of activations is weighted by a softmax."""
        products = self.with_role("product")
        reads = [read for product in products for read in self.inputs[product]]
        weights = [node for read in reads for node in (read, *self.before(read))]
        return any(self._is(node, _SOFTMAX) for node in (*products, *weights))

    def excluded(self, last: int | None) -> dict[fx.Node, str]:
        """Why a convolution of this flow is not part of the feature extractor.

        ``last``: identity of the last kernel of the model if no linear layer comes after it.
        """
        reasons: dict[fx.Node, str] = {}
        for node in self.with_role("conv"):
            if self._is(node, _TRANSPOSED):
                reasons[node] = TRANSPOSED
            elif self._reads_pooled(node):
                reasons[node] = GATE
            elif self._is_transition(node):
                reasons[node] = TRANSITION
            elif self._is_head(node, last):
                reasons[node] = HEAD
        reasons |= dict.fromkeys(self._dense(), DENSE)
        reasons |= dict.fromkeys(self._attention_projections(), ATTENTION)
        return reasons | dict.fromkeys(self._shortcuts(), SHORTCUT)

    def _pointwise(self, node: fx.Node) -> bool:
        return bool(self.kernels[node]) and all(k.pointwise for k in self.kernels[node])

    def _reads_pooled(self, node: fx.Node) -> bool:
        source = self.source(node)
        while source is not node and self.role[source] in ("conv", "linear"):
            node, source = source, self.source(source)
        return self.role[source] == "global pool"

    def _is_transition(self, node: fx.Node) -> bool:
        cuts = any(k.size == k.stride and not k.pointwise for k in self.kernels[node])
        pooled = self._pointwise(node) and self._only_feeds_a_pool(node)
        return (cuts or pooled) and self._is_between_stages(node)

    def _only_feeds_a_pool(self, node: fx.Node) -> bool:
        while len(readers := [n for n in node.users if node in self.inputs[n]]) == 1:
            (node,) = readers
            if self.role[node] not in ("other", "linear map"):
                return self.role[node] == "pool"
        return False

    def _dense(self) -> list[fx.Node]:
        """The last spatial kernel and what follows, if that is a classifier's dense layers.

        Such a kernel is meant to cover its whole input: it is wider than the one before it, has no
        padding, and nothing but 1x1 kernels comes after it.
        """
        # of an opaque part the order is unknown; as a classifier it begins with the wide kernel
        inside = [(n, sorted(self.kernels[n], key=lambda k: k.pointwise)) for n in self.nodes]
        kernels = [(kernel, node) for node, ordered in inside for kernel in ordered]
        spatial = [index for index, (kernel, _) in enumerate(kernels) if not kernel.pointwise]
        if len(spatial) < 2 or spatial[-1] == len(kernels) - 1:
            return []
        (before, earlier), follow = kernels[spatial[-2]], kernels[spatial[-1] :]
        covers, first = follow[0]
        wider = len(covers.size) == len(before.size) and all(
            a > b for a, b in zip(covers.size, before.size, strict=True)
        )
        chained = all(a.channels[1] == b.channels[0] for (a, _), (b, _) in pairwise(follow))
        plain = not covers.padded and all(step == 1 for step in covers.stride)
        alone = earlier is not first
        return [node for _, node in follow] if wider and chained and plain and alone else []

    def _is_between_stages(self, node: fx.Node) -> bool:
        if self.whole and not any(self.kernels[later] for later in self.after(node)):
            return False
        source = self.source(node)
        if self.role[source] == "placeholder":
            # a part of a model: what it reads is unseen, but a norm first says it is no image
            return not self.whole and any(self.role[n] == "linear map" for n in self.before(node))
        return self.role[source] in ("sum", "join") or (
            self.role[source] == "opaque" and bool(self.kernels[source])
        )

    def _is_head(self, node: fx.Node, last: int | None) -> bool:
        if not self._pointwise(node) or not (
            self.whole or any(id(kernel.parameter) == last for kernel in self.kernels[node])
        ):
            return False
        kernels = [n for n in self.nodes if self.kernels[n] and self.behind[node] & self.bit[n]]
        return (len(kernels) > 1 or not self.whole) and not any(
            self.weighted(later)
            or self.role[later] == "sum"
            or (later in self.called and any(True for _ in self.called[later].parameters()))
            for later in self.after(node)
        )

    def _attention_projections(self) -> Iterator[fx.Node]:
        for product in self.with_role("product"):
            for read in self.inputs[product]:
                # the read node itself may be the projection
                source = read if self.weighted(read) else self.source(read)
                if self.role[source] == "linear" or self._pointwise(source):
                    yield source
        for node in self.with_role("conv"):
            if self._pointwise(node) and self.role[self.source(node)] == "product":
                yield node

    def _shortcuts(self) -> Iterator[fx.Node]:
        for total in self.with_role("sum"):
            for one, other in (self.inputs[total][:2], self.inputs[total][1::-1]):
                arm = self._arm(one, other)
                if self._is_projection(arm, self._arm(other, one)):
                    yield from arm

    def _arm(self, end: fx.Node, other: fx.Node) -> list[fx.Node]:
        """The nodes that lead to ``end`` and not to ``other``."""
        own = self.behind[end] & ~self.behind[other]
        return [node for node in self.nodes if own & self.bit[node]]

    def _is_projection(self, arm: list[fx.Node], other: list[fx.Node]) -> bool:
        mine = [kernel for node in arm for kernel in self.kernels[node]]
        theirs = [kernel for node in other for kernel in self.kernels[node]]
        one_source = all(self.role[node] != "placeholder" for node in (*arm, *other))
        pointwise = all(kernel.pointwise for kernel in mine)
        spatial = any(not kernel.pointwise for kernel in theirs)
        alike = len(mine) == len(theirs) == 1 and pointwise and spatial
        plain = ("linear map", "pool")
        straight = all(self.kernels[node] or self.role[node] in plain for node in arm)
        weaker = len(mine) < len(theirs) or alike
        return one_source and weaker and (straight or (len(mine) == 1 and pointwise))

    def first_layers(self) -> list[nn.Parameter]:
        """The convolutions applied to an input before any other layer, or else the linear ones."""
        weighted = [node for node in self.nodes if self.weighted(node)]
        barred = set(self._attention_projections())
        mask = sum(self.bit[node] for node in weighted)
        first = [n for n in weighted if n not in barred and self.behind[n] & mask == self.bit[n]]
        convolutions = [kernels[0].parameter for n in first if (kernels := self.kernels[n])]
        linears = (first_linear(self.called[n]) for n in first if n in self.called)
        return convolutions or [linear for linear in linears if linear is not None]


def first_linear(module: nn.Module) -> nn.Parameter | None:
    """The weight of the first layer that is no norm, if that layer is a linear one."""
    if isinstance(module, nn.Linear):
        return next(module.parameters())
    if looks_like_attention(module):
        return None
    layers = (m for m in module.children() if list(m.parameters()) and not is_scale(m))
    first = next(layers, None)
    return None if first is None else first_linear(first)


def _argument(node: fx.Node, position: int, *names: str) -> Any:
    if len(node.args) > position:
        return node.args[position]
    return next((node.kwargs[name] for name in names if name in node.kwargs), None)


def _each(value: Any) -> tuple[Any, ...]:
    """The numbers of an argument that is one of them or several."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def looks_like_attention(module: nn.Module) -> bool:
    """Query, key and value projections side by side, fused or not, and one that leads back."""
    if isinstance(module, nn.MultiheadAttention):
        return True
    if isinstance(module, (nn.Sequential, nn.ModuleList)):
        return False
    shapes: Counter[tuple[int, int]] = Counter()
    for child in module.children():
        layers = child.children() if isinstance(child, nn.Sequential) else (child,)
        shapes.update((m.in_features, m.out_features) for m in layers if isinstance(m, nn.Linear))
    return any(
        (inner % 3 == 0 and (inner // 3, width) in shapes)
        or (shapes[width, inner] >= 3 and shapes[inner, width] > 3 * (width == inner))
        for width, inner in shapes
    )


def shortcut_by_shape(module: nn.Module) -> _Kernel | None:
    """The 1x1 convolution that maps the channels which its siblings map as a chain.

    The last convolution of a bottleneck can trade places with the shortcut when the block keeps
    its width; the shortcut is then the one inside a container, or else the one made last.
    """
    arms = [(child, kernels_within(child)) for child in module.children()]
    found: list[tuple[bool, int, _Kernel]] = []
    for child, arm in arms:
        others = [kernel for other, kernels in arms if other is not child for kernel in kernels]
        if len(arm) != 1 or not arm[0].pointwise or not others:
            continue
        chain = all(a.channels[1] == b.channels[0] for a, b in pairwise(others))
        ends = (others[0].channels[0], others[-1].channels[1])
        longer = len(others) > 1 or not others[0].pointwise
        if chain and longer and ends == arm[0].channels:
            found.append((not isinstance(child, _CONVOLUTIONS), len(found), arm[0]))
    return max(found)[-1] if found else None
