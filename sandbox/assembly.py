"""Plan + implementations -> one readable C++ source with the step ABI (docs/contract.md, section 2).

The emitted file holds, in this order: what it was made from, the runtime, each implementation once in a namespace of its
own, one configuration struct per use, the tables, one function per *kind* of phase (layers share it through a table of
arguments), and the ABI. Nothing in it depends on names or authors, so equal content gives equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.candidate import Implementation
from sandbox.errors import AssemblyError
from sandbox.graph import DTYPE_BYTES, Node, PortBox, Sharding, StageGraph
from sandbox.plan import Buffer, Phase, Plan, Step

RUNTIME = Path(__file__).resolve().parent / "stage_runtime" / "cpu"
C_TYPES = {"f32": "float", "bf16": "kb::bf16", "i32": "int32_t", "u8": "uint8_t"}
MAX_PORTS = 10
FORMS = {"w4": 0, "bf16": 1, "raw": 2}


def runtime_text(*names: str) -> str:
    """Runtime headers as one text: local includes and pragmas dropped, so that it stands in a single file."""
    out = []
    for name in names:
        text = (RUNTIME / name).read_text()
        out.append(re.sub(r'^(#pragma once|#include "[^"]*")\n', "", text, flags=re.M))
    return "\n".join(out)


@dataclass
class _Config:
    """One use of one implementation: constants and port types."""

    index: int
    impl: int
    body: str


@dataclass
class _Assembler:
    graph: StageGraph
    plan: Plan
    implementations: Mapping[str, Implementation]  # node name -> implementation
    impl_ids: dict[str, int] = field(default_factory=dict)
    impls: list[Implementation] = field(default_factory=list)
    configs: dict[str, _Config] = field(default_factory=dict)
    externals: list[str] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    node_index: dict[str, int] = field(default_factory=dict)
    items_tables: dict[str, str] = field(default_factory=dict)
    lists: dict[str, str] = field(default_factory=dict)
    copy_tables: dict[str, str] = field(default_factory=dict)

    # -- pieces ------------------------------------------------------------------------------------------------

    def impl_of(self, node: Node, sharding: Sharding) -> int:
        impl = self.implementations.get(node.name)
        if impl is None:
            raise AssemblyError(f"no implementation for {node.name} (kind {node.kind}); seed a skill that has one")
        if impl.kind != node.kind or not impl.accepts(sharding.name) or impl.target != self.plan.target:
            raise AssemblyError(
                f"implementation '{impl.name}' ({impl.kind}, {impl.target}, shardings {list(impl.shardings)}) does not fit "
                f"{node.name} ({node.kind}, {self.plan.target}, sharding '{sharding.name}')"
            )
        if impl.id not in self.impl_ids:
            self.impl_ids[impl.id] = len(self.impls)
            self.impls.append(impl)
        return self.impl_ids[impl.id]

    def home(self, tensor: str) -> Buffer | None:
        return self.plan.buffers.get(tensor)

    def slot(self, tensor: str) -> int:
        """Buffer index, or -1 - external index."""
        buffer = self.home(tensor)
        if buffer is None:
            if tensor not in self.externals:
                self.externals.append(tensor)
            return -1 - self.externals.index(tensor)
        return [b.tensor for b in self.buffers].index(tensor)

    def port_type(self, node: Node, port: str, box: PortBox) -> str:
        tensor = node.ports[port]
        decl = self.graph.tensors[tensor]
        ctype = C_TYPES[decl.dtype]
        buffer = self.home(tensor)
        if box.mode == "read":
            if buffer is not None and buffer.home == "partial":
                return f"kb::Sum<{buffer.copies}>"
            return f"kb::View<{ctype}>"
        if box.mode == "own":
            return f"kb::Own<{ctype}>"
        return "kb::Add" if box.mode == "add" else f"kb::State<{ctype}>"

    def config(self, node: Node, sharding: Sharding) -> _Config:
        impl = self.impl_of(node, sharding)
        lines = [f"using Tag = void;  // {node.kind}, split by {sharding.name}"]
        constants = {"ITEMS": sharding.items, "PERIOD": sharding.period, "SEGMENTS": len(sharding.segments)}
        constants |= node.dims | sharding.dims | self.impls[impl].knobs
        lines += [f"static constexpr int {k} = {v};" for k, v in sorted(constants.items())]
        for port in node.ports:
            whole = sharding.boxes[port].size == 0
            lines.append(f"static constexpr bool WHOLE_{port.upper()} = {'true' if whole else 'false'};")
        members, ys = [], []
        for port in node.ports:
            kind = self.port_type(node, port, sharding.boxes[port])
            if re.fullmatch(r"y\d+", port):
                ys.append(kind)
            else:
                members.append(f"{kind} {port};")
        if any(re.fullmatch(r"y\d+", p) for p in node.ports) or "NY" in node.dims:
            members.append(f"std::tuple<{', '.join(ys)}> ys;")
        lines.append("struct Ports { " + " ".join(members) + " };")
        body = "\n    ".join(lines[1:])
        key = f"{impl}|{body}"
        if key not in self.configs:
            self.configs[key] = _Config(len(self.configs), impl, lines[0].split("// ")[1] + "\n    " + body)
        return self.configs[key]

    def port_expr(self, node: Node, step: Step, port: str, index: int, sharding: Sharding) -> str:
        tensor, box = node.ports[port], sharding.boxes[port]
        decl = self.graph.tensors[tensor]
        ctype, buffer = C_TYPES[decl.dtype], self.home(tensor)
        base = f"static_cast<{ctype}*>(s.port[{index}])"
        count = decl.size if box.size == 0 else (box.rows - 1) * box.stride + box.size
        if buffer is not None and buffer.home == "private":
            base += f" + size_t(b.id) * {decl.size}"
        if buffer is not None and buffer.home == "partial" and box.mode == "add":
            base += f" + size_t({self.copy_table(buffer)}[b.id]) * {decl.size}"
        if box.mode == "append":
            base += f" + size_t(run.position) * {box.size}"
        elif box.size:
            base += f" + size_t(item) * {box.size}"
        if decl.axes[:1] == ("row",) and box.mode == "read":
            return f"{{{base}, size_t(run.position) * {decl.size // decl.shape[0]}}}"
        if buffer is not None and buffer.home == "partial" and box.mode == "read":
            return f"{{{base}, {count}, {decl.size}}}"
        return f"{{{base}, {count}}}"

    def copy_table(self, buffer: Buffer) -> str:
        """Name of the block -> copy table; layers that map alike share it, and so their phase functions."""
        text = ", ".join(map(str, buffer.copy_of))
        return self.copy_tables.setdefault(text, f"kCopy{len(self.copy_tables)}")

    def items(self, step: Step, count: int) -> str:
        """Name of the [blocks] table of owned items."""
        rows = []
        for block in range(self.plan.blocks):
            own = list(range(count)) if step.replicated else [i for i, o in enumerate(step.owner) if o == block]
            if own == list(range(own[0], own[0] + len(own))) if own else True:
                rows.append(f"{{kIota + {own[0] if own else 0}, {len(own)}}}")
            else:
                text = ", ".join(map(str, own))
                name = self.lists.setdefault(text, f"kList{len(self.lists)}")
                rows.append(f"{{plan::{name}, {len(own)}}}")
        text = "{" + ", ".join(rows) + "}"
        if text not in self.items_tables:
            self.items_tables[text] = f"kOwned{len(self.items_tables)}"
        return self.items_tables[text]

    # -- phases ------------------------------------------------------------------------------------------------

    def phase_body(self, phase: Phase) -> str:
        out = []
        for k, step in enumerate(phase.steps):
            node = self.graph.by_name[step.node]
            sharding = node.shardings[step.sharding]
            cfg = self.config(node, sharding)
            out.append(
                f"    {{  // {node.short}: impl{cfg.impl}, split by {sharding.name}" + (", in every block" if step.replicated else "")
            )
            out.append(f"        using C = plan::Cfg{cfg.index};")
            out.append(f"        using S = impl{cfg.impl}::Stage<C>;")
            out.append(f"        const kb::StepArgs& s = a[{k}];")
            out.append(f"        const kb::Items& own = plan::{self.items(step, sharding.items)}[b.id];")
            for w in step.waits:
                e = self.event(w.event)
                out.append(
                    f'        if (own.count > 0 && !grid.wait_event(b, phase, "flag {_short(w.event)}", e0 + {e}, {w.count})) return false;'
                )
            out.append(f"        run.layer = s.layer, run.writer = {f'b.id == {step.writer}' if step.replicated else 'true'};")
            ports: list[str] = []
            ys: list[str] = []
            for i, port in enumerate(node.ports):
                expr = self.port_expr(node, step, port, i, sharding)
                (ys if re.fullmatch(r"y\d+", port) else ports).append(expr)
            if "NY" in node.dims:
                ports.append("{" + ", ".join(self.port_type(node, f"y{j}", sharding.boxes[f"y{j}"]) + e for j, e in enumerate(ys)) + "}")
            out.append(f"        const auto ports = [&]([[maybe_unused]] int item) {{ return C::Ports{{{', '.join(ports)}}}; }};")
            if sharding.selects:
                i = list(node.ports).index(sharding.selects)
                ids = self.port_expr(node, step, sharding.selects, i, sharding)
                out.append(f"        const kb::View<int32_t> ids{ids};")
                out.append(
                    "        const auto unit = [&](int item) { return ids[size_t(item / C::PERIOD)] * C::PERIOD + item % C::PERIOD; };"
                )
            else:
                out.append(f"        const auto unit = [](int item) {{ return {'item' if sharding.units != 1 else 'item * 0'}; }};")
            out.append("        kb::run_items<S>(b, run, s.pages, own.item, own.count, ports, unit);")
            for event in step.signals:
                out.append(f"        if (own.count > 0) grid.signal(e0 + {self.event(event)});")
            out.append("    }")
        return "\n".join(out)

    def event(self, name: str) -> int:
        """Index of an event within its layer (layers own equal runs of events, so that they can share a phase function)."""
        short = _short(name)
        phases = [p for p in self.plan.phases if any(name in s.signals or name in [w.event for w in s.waits] for s in p.steps)]
        layers = {self.graph.by_name[s.node].layer for p in phases for s in p.steps}
        if len(layers) > 1:
            raise AssemblyError(f"event '{name}' is used in phases that mix layers {sorted(layers)}: use a barrier")
        names = sorted({_short(e) for _, s in self.plan.steps() for e in s.signals})
        return names.index(short)

    def assemble(self) -> str:
        plan, graph = self.plan, self.graph
        self.buffers = [plan.buffers[t] for t in plan.buffers]
        sizes: dict[str, int] = {}
        for b in self.buffers:
            copies = {"shared": 1, "private": plan.blocks, "partial": b.copies}[b.home]
            sizes[b.storage] = max(sizes.get(b.storage, 0), graph.tensors[b.tensor].bytes * copies)
        offset, starts = 0, {}
        for storage, size in sizes.items():
            starts[storage] = offset
            offset += -(-size // 128) * 128 + 128
        self.offsets = [starts[b.storage] for b in self.buffers]
        for _, step in plan.steps():
            for tensor in graph.by_name[step.node].ports.values():
                self.slot(tensor)
        if any(len(graph.by_name[s.node].ports) > MAX_PORTS for _, s in plan.steps()):
            raise AssemblyError(f"a stage has more than {MAX_PORTS} ports (kMaxPorts of program.hpp)")
        kinds: dict[str, int] = {}
        functions, phase_rows, step_rows, node_rows, segments, ports, zeros = [], [], [], [], [], [], []
        bodies = [self.phase_body(phase) for phase in plan.phases]
        for phase, body in zip(plan.phases, bodies, strict=True):
            if body not in kinds:
                kinds[body] = len(kinds)
                label = re.sub(r"\W", "_", re.sub(r"\d+", "", phase.name.split("+")[0])).strip("_")
                functions.append((kinds[body], label, body))
        labels = {k: f"phase{k}_{label}" for k, label, _ in functions}
        for p, phase in enumerate(plan.phases):
            steps = []
            for step in phase.steps:
                node = graph.by_name[step.node]
                sharding = node.shardings[step.sharding]
                cfg = self.config(node, sharding)
                n = self.node_index[node.name] = len(self.node_index)
                steps.append(f"{{{n}, {self.items(step, sharding.items)}}}")
                experts = max(1, sharding.units // sharding.period)
                if sharding.segments:
                    seg = ", ".join(
                        f'{{"{s.tensor}", {FORMS[s.form]}, {{{s.rows}, {s.cols}, {s.k0}, {s.k}, {s.k_stride}, {s.n0}, {s.n}, {s.n_stride}}}}}'
                        for s in sharding.segments
                    )
                    segments.append(f"const kb::SegmentInfo kSegments{n}[] = {{{seg}}};")
                ports.append(
                    f"const kb::PortInfo kPorts{n}[] = {{{', '.join(self.port_info(node, port, sharding) for port in node.ports)}}};"
                )
                selects = list(node.ports).index(sharding.selects) if sharding.selects else -1
                node_rows.append(
                    f'    {{"{node.name}", {cfg.index}, {node.layer}, {sharding.units}, {sharding.period}, {experts}, {selects}, '
                    f"{f'kSegments{n}' if sharding.segments else 'nullptr'}, {len(sharding.segments)}, kPorts{n}, {len(node.ports)}}},"
                )
            for t in phase.zero:
                if t not in plan.buffers:
                    raise AssemblyError(f"phase {phase.name} zeroes '{t}', which no step of the plan makes")
                by = [min(b for b, c in enumerate(plan.buffers[t].copy_of) if c == copy) for copy in range(plan.buffers[t].copies)]
                zeros.append(f"const int kZeroBy{p}_{self.slot(t)}[] = {{{', '.join(map(str, by))}}};")
            zero = ", ".join(f"{{{self.slot(t)}, kZeroBy{p}_{self.slot(t)}}}" for t in phase.zero)
            step_rows.append(f"const kb::StepInfo kSteps{p}[] = {{{', '.join(steps)}}};")
            if zero:
                step_rows.append(f"const kb::Zero kZero{p}[] = {{{zero}}};")
            phase_rows.append(
                f'    {{"{phase.name}", {labels[kinds[bodies[p]]]}, kSteps{p}, {len(phase.steps)}, '
                f"{f'kZero{p}' if zero else 'nullptr'}, {len(phase.zero)}, {'true' if phase.barrier else 'false'}}},"
            )
        return self.render(offset, functions, labels, phase_rows, step_rows, node_rows, segments, ports, zeros)

    def port_info(self, node: Node, port: str, sharding: Sharding) -> str:
        tensor, box = node.ports[port], sharding.boxes[port]
        decl = self.graph.tensors[tensor]
        cache = decl.axes[:1] == ("row",) and box.mode == "read"
        stride = decl.size // decl.shape[0] if cache else box.stride
        state = "true" if box.mode == "state" else "false"
        return (
            f"{{{self.slot(tensor)}, {DTYPE_BYTES[decl.dtype]}, {box.size}, {box.rows}, {stride}, {state}, {'true' if cache else 'false'}}}"
        )

    def render(self, arena: int, functions: list[tuple[int, str, str]], labels: dict[int, str], phase_rows: list[str], step_rows: list[str],
               node_rows: list[str], segments: list[str], ports: list[str], zeros: list[str]) -> str:  # fmt: skip
        plan, graph = self.plan, self.graph
        most = max(node.shardings[s.sharding].items for _, s in plan.steps() for node in [graph.by_name[s.node]])
        homes = {"shared": "kb::kShared", "private": "kb::kPrivate", "partial": "kb::kPartial"}
        events = sorted({_short(e) for _, s in plan.steps() for e in s.signals})
        layers = 1 + max(n.layer for n in graph.nodes)
        parts = [
            f"// Megakernel for {graph.name}, assembled by kernelbraid.",
            f"// {len(plan.phases)} phases on {plan.blocks} blocks, {plan.all_to_alls} all-to-all dependencies, one dispatch per step.",
            "// Build: g++ -std=c++20 -O3 -march=native -Wno-psabi -fPIC -shared -pthread this.cpp -o kernel.so",
            "// Made of:",
            *[f"//   impl{i}: {m.kind} {dict(sorted(m.knobs.items())) or ''} sha256 {m.id[:16]}" for i, m in enumerate(self.impls)],
            "",
            "// ==== runtime " + "=" * 100,
            runtime_text("vec.hpp", "contract.hpp", "runtime.hpp", "program.hpp"),
        ]
        for i, m in enumerate(self.impls):
            parts += [f"// ==== impl{i}: {m.kind} " + "=" * 80, f"namespace impl{i} {{", m.source.strip(), f"}}  // namespace impl{i}", ""]
        parts += ["// ==== plan " + "=" * 103, "namespace plan {", f'constexpr const char* kName = "{plan.id[:16]}";',
                  f"constexpr int kBlocks = {plan.blocks}, kPhaseCount = {len(plan.phases)}, kNodeCount = {len(node_rows)}, "
                  f"kStepCount = {len(node_rows)}, kBufferCount = {len(self.buffers)}, kExternalCount = {len(self.externals)}, "
                  f"kEventCount = {len(events) * layers};",
                  f"constexpr size_t kArenaBytes = {arena};",
                  f"const int kIota[] = {{{', '.join(map(str, range(most + 1)))}}};"]  # fmt: skip
        parts += [f"struct Cfg{c.index} {{  // {c.body}\n}};" for c in self.configs.values()]
        parts += [f"const int {name}[] = {{{text}}};" for text, name in self.copy_tables.items()]
        parts += [f"const int {name}[] = {{{text}}};" for text, name in self.lists.items()]
        parts += [f"const kb::Items {name}[] = {rows};" for rows, name in self.items_tables.items()]
        parts += ["}  // namespace plan", "", "// ==== phases: one function per kind, layers differ in their arguments " + "=" * 40]
        for k, _, body in functions:
            used = "e0" in body
            parts += [
                f"static bool {labels[k]}(kb::Block& b, const kb::StepArgs* a, kb::Launch run, [[maybe_unused]] kb::Grid& grid, [[maybe_unused]] int phase) {{",
                "    using plan::kIota;" if "kIota" in body else "",
                *[f"    using plan::{name};" for name in sorted(set(re.findall(r"\bkCopy\d+\b", body)))],
                f"    const int e0 = a[0].layer * {len(events)};" if used else "",
                body,
                "    return true;",
                "}",
            ]
        parts += ["namespace plan {", *segments, *ports, *zeros, *step_rows,
                  "const kb::StageInfo kStages[] = {",
                  *[f"    kb::stage_info<impl{c.impl}::Stage<Cfg{c.index}>>()," for c in self.configs.values()], "};",
                  "const kb::NodeInfo kNodes[] = {", *node_rows, "};", "const kb::BufferInfo kBuffers[] = {",
                  *[f'    {{"{b.tensor}", {homes[b.home]}, {b.copies if b.home == "partial" else 1}, {graph.tensors[b.tensor].bytes}, '
                    f"{self.offsets[i]}, {DTYPE_BYTES[graph.tensors[b.tensor].dtype]}}}," for i, b in enumerate(self.buffers)],
                  '    {"", kb::kExternal, 0, 0, 0, 0}};', "const kb::ExternalInfo kExternals[] = {",
                  *[self.external_row(t) for t in self.externals], '    {"", 0, 0}};', "const kb::PhaseInfo kPhases[] = {", *phase_rows, "};",
                  "}  // namespace plan", "", "// ==== ABI " + "=" * 104, runtime_text("abi.hpp")]  # fmt: skip
        return "\n".join(p for p in parts if p != "") + "\n"

    def external_row(self, tensor: str) -> str:
        decl = self.graph.tensors[tensor]
        if decl.axes[:1] == ("row",):
            return f'    {{"{tensor}", 0, {decl.bytes // decl.shape[0]}}},'
        return f'    {{"{tensor}", {decl.bytes}, 0}},'


def _short(name: str) -> str:
    return name.split(".", 1)[-1]


def assemble(graph: StageGraph, plan: Plan, implementations: Mapping[str, Implementation]) -> str:
    """One translation unit for the `cpu` target. `implementations` maps every node name to what computes it.

    Raises AssemblyError if a stage lacks an implementation or an implementation does not fit its stage."""
    if plan.target != "cpu":
        raise AssemblyError(f"this assembler emits for cpu; plan '{plan.name}' is for {plan.target}")
    return _Assembler(graph, plan, implementations).assemble()
