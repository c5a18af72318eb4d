"""The stage graph: what is computed, as a DAG of stages with tensors on the edges (docs/contract.md, section 1)."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import networkx as nx
from pydantic import Field, model_validator

from sandbox.errors import RecordError
from sandbox.records import Frozen

DType = Literal["f32", "bf16", "i32", "u8"]
DTYPE_BYTES: dict[str, int] = {"f32": 4, "bf16": 2, "i32": 4, "u8": 1}


class TensorDecl(Frozen):
    """A tensor of the graph. `edge`: made and read inside one step; `input`, `output`: the step's ends;
    `state`: lives on between steps. The sharded axis of a tensor leads, so a box is one interval (a window's: one per tap)."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: DType = "f32"
    role: Literal["edge", "input", "output", "state"] = "edge"

    @property
    def size(self) -> int:
        """Number of elements."""
        n = 1
        for s in self.shape:
            n *= s
        return n

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.size * DTYPE_BYTES[self.dtype]


class Segment(Frozen):
    """Which part of one canonical weight a packed unit holds.

    Unit u of a node covers rows `k0 + (u % period) * k_stride ...` (`k` of them) and columns
    `n0 + (u % period) * n_stride ...` (`n` of them) of expert `u // period` (0 for tensors without an expert axis).
    """

    tensor: str
    form: Literal["w4", "bf16", "raw"]
    rows: int = 0  # of the whole canonical matrix (of one expert)
    cols: int = 0
    k0: int = 0
    k: int
    k_stride: int = 0
    n0: int = 0
    n: int
    n_stride: int = 0


class PortBox(Frozen):
    """How an item sees one port: `size` elements from `item * size` on, or the whole tensor if size is 0.

    `mode` of an output: `own` (this item is the only writer of its box), `add` (items add into copies that
    somebody zeroed), `append` (the row at the launch's position), `state` (in place). With `rows` > 1 the box is that
    many intervals, `stride` elements apart (a head's channels of every tap of a window)."""

    size: int = 0
    rows: int = 1
    stride: int = 0
    mode: Literal["read", "own", "add", "append", "state"] = "read"


class Sharding(Frozen):
    """One way to split a stage into items over blocks."""

    name: str
    items: int = Field(gt=0)
    boxes: dict[str, PortBox]
    segments: tuple[Segment, ...] = ()
    period: int = Field(default=1, gt=0)  # units of one expert; units // period = expert
    units: int = 0  # packed units; 0 if the stage streams nothing
    selects: str = ""  # port with the expert ids, if the pages are dynamic: unit = ids[item // period] * period + item % period
    dims: dict[str, int] = {}  # constants of this sharding that the stage source needs (K, N of an item, ...)


class Node(Frozen):
    """One stage of the problem."""

    name: str
    kind: str
    layer: int
    inputs: dict[str, str] = {}  # port -> tensor
    outputs: dict[str, str] = {}
    states: dict[str, str] = {}
    shardings: dict[str, Sharding]
    dims: dict[str, int] = {}
    bytes: int = 0  # bytes it must read or write in memory per step (weights, state, cache)
    flops: int = 0

    @property
    def short(self) -> str:
        """Name without the layer, e.g. `qkvg` for `L0.qkvg`."""
        return self.name.split(".", 1)[1] if "." in self.name else self.name

    @property
    def ports(self) -> dict[str, str]:
        """Every port -> tensor."""
        return {**self.inputs, **self.outputs, **self.states}


class StageGraph(Frozen):
    """The DAG of a problem's stages, in a legal order."""

    name: str
    tensors: dict[str, TensorDecl]
    nodes: tuple[Node, ...]

    @model_validator(mode="after")
    def _check(self) -> StageGraph:
        made: dict[str, str] = {}
        names: set[str] = set()
        for node in self.nodes:
            if node.name in names:
                raise RecordError(f"stage graph '{self.name}' names '{node.name}' twice")
            names.add(node.name)
            for port, tensor in node.ports.items():
                if tensor not in self.tensors:
                    raise RecordError(f"{node.name}.{port} uses tensor '{tensor}' that the graph does not declare")
            for tensor in node.inputs.values():
                if self.tensors[tensor].role == "edge" and tensor not in made:
                    raise RecordError(f"{node.name} reads '{tensor}' before any stage made it: order the nodes")
            for tensor in node.outputs.values():
                if tensor in made:
                    raise RecordError(f"'{tensor}' is made by both {made[tensor]} and {node.name}")
                made[tensor] = node.name
            for sharding in node.shardings.values():
                missing = set(node.ports) - set(sharding.boxes)
                if missing:
                    raise RecordError(f"sharding '{sharding.name}' of {node.name} has no box for port {sorted(missing)}")
        return self

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """Node name -> node."""
        return {n.name: n for n in self.nodes}

    @cached_property
    def producers(self) -> dict[str, str]:
        """Tensor -> name of the node that makes it."""
        return {t: n.name for n in self.nodes for t in n.outputs.values()}

    def digraph(self) -> nx.DiGraph[str]:
        """The networkx view: nodes carry bytes and flops, edges the tensor and its bytes.

        States make no edges: a node that reads a state which another node changes in the same step takes its place from
        the order of `nodes`, and the legality checker holds plans to it."""
        g: nx.DiGraph[str] = nx.DiGraph()
        for node in self.nodes:
            g.add_node(node.name, kind=node.kind, layer=node.layer, bytes=node.bytes, flops=node.flops)
        for node in self.nodes:
            for tensor in node.inputs.values():
                source = self.producers.get(tensor)
                if source is not None:
                    g.add_edge(source, node.name, tensor=tensor, bytes=self.tensors[tensor].bytes)
        return g

    def levels(self) -> list[list[str]]:
        """Topological levels: the phases of the unfused plan."""
        return [sorted(level, key=[n.name for n in self.nodes].index) for level in nx.topological_generations(self.digraph())]

    def alone(self, name: str) -> StageGraph:
        """The graph of one stage by itself: its inputs become the step's inputs; its outputs stay buffers of the runtime,
        read back by name, so that a stage that adds into copies is seen as the sum."""
        node = self.by_name[name]
        tensors = {}
        for tensor in node.ports.values():
            decl = self.tensors[tensor]
            if decl.role == "edge" and tensor in node.inputs.values():
                decl = decl.model_copy(update={"role": "input"})
            tensors[tensor] = decl
        return StageGraph(name=f"{self.name}:{name}", tensors=tensors, nodes=(node,))
