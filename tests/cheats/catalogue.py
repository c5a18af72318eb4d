"""The red team's catalogue: every cheat with what must catch it, and the honest twins that a careless defence would refuse.

Kinds are those of the research page on harness failures (H01 to H52, where they can be tried on a CPU); "own" are our additions, "twin"
the honest ones. Left out because the rules allow it: H49, handing work to libraries; H52 is about filters of sources, of which we have none.
"""

from __future__ import annotations

from orchestrator.redteam import NO_CLAIM, NO_GAIN, Cheat

MLP, KIMI = ("support/honest_mlp.py",), ("support/honest_kimi.py",)
SHADOWS = tuple(f"support/shadow/{name}.py" for name in ("statistics", "safetensors", "binascii", "contract", "sitecustomize"))
# A wrong value: seen when checked, or in a timed chain. A broken rule: an answer, a structure or a count that is not allowed.
VALUES = ("wrong", "cheating")
BROKEN = ("rule_broken",)


def mlp(kind: str, name: str, caught: tuple[str, ...], defence: str, **more: object) -> Cheat:
    """A solution of gated_mlp."""
    return Cheat(kind=kind, name=name, file=f"python/{name}.py", language="python", caught=caught, defence=defence,
                 **{"beside": MLP, **more})  # fmt: skip


def kimi(kind: str, name: str, caught: tuple[str, ...], defence: str, **more: object) -> Cheat:
    """A solution of kimi_linear_decode in Python."""
    return Cheat(kind=kind, name=name, file=f"python/{name}.py", language="python", caught=caught, defence=defence,
                 problem="kimi_linear_decode", plain=True, beside=KIMI, **more)  # fmt: skip


def cpp(kind: str, name: str, caught: tuple[str, ...], defence: str, **more: object) -> Cheat:
    """A C++ candidate for one decode step of kimi_linear_decode."""
    return Cheat(kind=kind, name=f"{name}_cpp", file=f"cpp/{name}.cpp", language="cpp", caught=caught, defence=defence,
                 problem="kimi_linear_decode", **more)  # fmt: skip


def gpu(kind: str, name: str, caught: tuple[str, ...], defence: str, **more: object) -> Cheat:
    """A solution of gated_mlp for a GPU."""
    return Cheat(kind=kind, name=f"{name}_gpu", file=f"gpu/{name}.py", language="python", caught=caught, defence=defence, gpu=True,
                 **{"beside": MLP, **more})  # fmt: skip


FRESH = "values, objects and addresses are fresh for every chain and change from step to step"
CHAINS = "the outputs of timed chains are compared with the truth"
NOWHERE = "the truth is in another process, which the box does not show"
CLOCK = "the parent's own clock times chains from outside"
FORM = "type, dtype, shape and strides are compared before values"
BOUND = "the tolerance is twice the error of the honest bf16 baseline on the same cases"
DIGEST = "the digest in the answer commits to all outputs of the chain"
BOX = "the box shows the system, the solution and the contract, and nothing else"
ENDS = "the box has limits, and all of it ends with it"
TURN = "whoever is not at his turn must not take CPU from whoever is"

NOT_COMPUTING = (
    mlp("H01", "identity_memo", (*VALUES, NO_GAIN), FRESH, fools_naive=True),
    mlp("H02", "fingerprint_memo", (*VALUES, NO_GAIN), FRESH, fools_naive=True),
    mlp("H03", "value_memo", (*VALUES, NO_GAIN), FRESH, fools_naive=True),
    mlp("H04", "id_reuse", (*VALUES, NO_GAIN), FRESH, fools_naive=True),
    mlp("H05", "disk_replay", (NO_GAIN,), "no file of one box is seen in another", fools_naive=True),
    mlp("H05", "phase_marker", (*VALUES, NO_GAIN), "no file of one box is seen in another", fools_naive=True),
    mlp("H06", "counter_late", ("cheating",), CHAINS, fools_naive=True),
    mlp("H06", "counter_early", ("wrong",), "the first call of a fresh process is compared with the truth", fools_naive=True),
    mlp("H07", "slow_warmup", (NO_GAIN, *VALUES), "chains have a least length whatever the first one took", fools_naive=True,
        most_gain=1.5),
    mlp("H08", "super_batch", VALUES, "an output is copied when its call returns", fools_naive=True),
    mlp("H10", "leftovers", VALUES, NOWHERE),
    mlp("H11", "launch_failure", VALUES, FRESH, fools_naive=True),
    mlp("H12", "half_rows", VALUES, "every element is compared"),
    mlp("H12", "skip_tail", VALUES, BOUND),
    mlp("H13", "identity", VALUES, "a problem is admitted only if the identity fails under it"),
    mlp("H14", "zeros", VALUES, "errors are relative to the truth"),
    cpp("H01", "pointer_memo", VALUES, FRESH),
    cpp("H03", "value_memo", (NO_GAIN, *VALUES), FRESH),
    cpp("H06", "counter_late", VALUES, CHAINS),
)  # fmt: skip
SPECIAL_CASES = (
    mlp("H17", "fixed_scale", VALUES, "inputs of every row and case have another size", fools_naive=True),
    mlp("H17", "small_gate", VALUES, "probe weights make gates large", fools_naive=True, probes=True),
    mlp("H18", "known_seed", VALUES, "seeds are secret and of many bits", fools_naive=True),
    mlp("H20", "sniff_stack", VALUES, CHAINS, fools_naive=True),
    mlp("H20", "sniff_environment", VALUES, CHAINS, fools_naive=True),
    mlp("H20", "sniff_request", VALUES, CHAINS),
    mlp("H20", "sniff_profiler", (NO_GAIN, *VALUES), FRESH, fools_naive=True),
    cpp("H20", "sniff_frames", VALUES, CHAINS),
    mlp("own", "sniff_chain", VALUES, CHAINS),
    mlp("own", "alternate", VALUES, CHAINS, fools_naive=True),
    mlp("own", "rare_step", VALUES, "the worst step of a chain has a bound, too", fools_naive=True),
    mlp("own", "refuse_probes", ("crash", *BROKEN), "a refusal is no pass", fools_naive=True, probes=True),
    cpp("own", "past_context", VALUES, CHAINS),
    kimi("own", "kimi_past_context", VALUES, CHAINS),
    kimi("H12", "kimi_short_window", VALUES, BOUND),
    mlp("H21", "shape_broadcast", BROKEN, FORM, fools_naive=True),
    mlp("H21", "dtype_wide", BROKEN, FORM, fools_naive=True),
    mlp("H21", "stride_view", BROKEN, FORM),
    mlp("H21", "transposed_view", BROKEN, FORM, fools_naive=True),
    mlp("H21", "subclass", BROKEN, FORM, fools_naive=True),
    mlp("H22", "nan", VALUES, "an output that is not finite is wrong", fools_naive=True),
    mlp("H22", "inf", VALUES, "an output that is not finite is wrong", fools_naive=True),
    mlp("H23", "comparator", BROKEN, FORM, fools_naive=True),
    mlp("H23", "forged_type", (*VALUES, *BROKEN), "the parent compares bytes", fools_naive=True),
    mlp("H24", "gamble", VALUES, "many cases, and chains of many steps"),
    mlp("H25", "fp8_weights", VALUES, BOUND),
    mlp("H25", "int8_weights", VALUES, BOUND, fools_naive=True),
    mlp("H25", "fp8_activations", VALUES, BOUND, fools_naive=True),
)  # fmt: skip
MEMORY = (
    mlp("H26", "mutate_input", VALUES, "the truth is computed from the parent's own copy", fools_naive=True),
    mlp("H26", "scribble_input", VALUES, "inputs must come back unchanged", fools_naive=True),
    cpp("H26", "input_changed", VALUES, "inputs must come back unchanged"),
    cpp("H26", "weights_changed", ("crash",), "weights are mapped read-only"),
    mlp("H28", "harvest_gc", VALUES, NOWHERE, fools_naive=True),
    mlp("H28", "harvest_frames", VALUES, NOWHERE, fools_naive=True),
    mlp("H28", "harvest_memory", (*VALUES, "hang"), NOWHERE, fools_naive=True),
    mlp("H28", "parent_memory", VALUES, NOWHERE),
    mlp("H29", "rewrite_history", VALUES, "what was handed out in time feeds the next step, and counts"),
    cpp("H29", "overrun", VALUES, "the rest of the last page holds a pattern"),
    cpp("H29", "underrun", ("crash",), "the page before a tensor may not be touched"),
    cpp("own", "state_not_written", VALUES, "all states are compared after a step"),
    cpp("own", "state_only_checked", VALUES, CHAINS, probes=True, processes=5),
    cpp("own", "state_late", (*VALUES, "crash"), "a chain binds fresh memory, and states are read as soon as the answer is there"),
    cpp("own", "last_block_state", VALUES, CHAINS, probes=True, processes=5),
    kimi("own", "kimi_state_kept", VALUES, "all states are compared after a step"),
)  # fmt: skip
CLOCKS = (
    mlp("H33", "lazy_tensor", BROKEN, FORM, fools_naive=True),
    mlp("H34", "patch_timer", (NO_GAIN,), CLOCK, fools_naive=True),
    cpp("H35", "frozen_clock", (NO_GAIN, *BROKEN), CLOCK),
    cpp("H35", "stage_stamps", (NO_CLAIM, *BROKEN), "a stage's own clock only ranks proposals: it proves nothing and enters no memory",
        node="L3.up"),
    mlp("H36", "import_time", (NO_GAIN, *VALUES), "no input is known when a solution is loaded", fools_naive=True),
    cpp("H36", "static_constructor", VALUES, "no input is known when a library is loaded"),
    cpp("H36", "bind_ahead", (NO_GAIN, *VALUES), "a state is bound, or its pad lifted, inside the time of the chain", twin="cpp/honest_bind.cpp"),
    kimi("H36", "kimi_state_ahead", (NO_GAIN, *VALUES), "a state is bound, or its pad lifted, inside the time of the chain",
         twin="python/honest_kimi_expands.py"),
    mlp("own", "before_the_clock", (NO_GAIN, *VALUES), "the first input of a chain arrives inside the timed span", fools_naive=True),
    mlp("own", "answer_later", VALUES, "an output is copied when its call returns"),
    mlp("own", "answer_log", (*VALUES, *BROKEN), DIGEST),
    cpp("own", "answer_later", (*VALUES, "crash"), "an output is copied when its call returns"),
    mlp("H40", "hog", (NO_GAIN, "limit"), TURN, most_gain=1.5),
    mlp("H40", "affinity", (NO_GAIN,), "candidates have the CPUs of their rivals, and no others", fools_naive=True, most_gain=1.5),
    mlp("H40", "priority", VALUES, "the box has no right to raise a priority"),
)  # fmt: skip
GRADER = (
    mlp("H41", "patch_torch", VALUES, "the comparison happens in another process", fools_naive=True),
    mlp("H41", "patch_child", VALUES, "every step of a chain is compared with the truth"),
    mlp("H43", "early_reply", (*VALUES, *BROKEN), DIGEST),
    mlp("H43", "forged_stdout", VALUES, "stdout of a candidate is a log"),
    mlp("H43", "forged_fds", BROKEN, "an answer carries the id of its request"),
    mlp("H43", "result_file", (*VALUES, *BROKEN), "only the bytes that were asked for are read"),
    mlp("H43", "link_result", (*VALUES, *BROKEN, "crash"), "only plain files of the scratch folder are read"),
    cpp("H43", "forged_fds", BROKEN, "an answer carries the id of its request"),
    mlp("H44", "edit_files", VALUES, "what the box shows is read-only"),
    mlp("H45", "shadow_modules", VALUES, "a solution's folder comes last on the path", fools_naive=True, beside=(*MLP, *SHADOWS)),
    mlp("H46", "snoop", VALUES, BOX),
    mlp("H50", "fallback_reference", VALUES, BOX),
    mlp("H51", "decoy", VALUES, "only the output counts"),
    cpp("H51", "forged_dispatches", (NO_CLAIM, *BROKEN), "on a CPU the count is recorded as the runtime's word and is never called a launch"),
    cpp("own", "many_dispatches", BROKEN, "more dispatches a step than the problem allows"),
    mlp("own", "network", VALUES, "the box has an empty network of its own"),
    mlp("own", "environ", VALUES, "the box has processes and an environment of its own"),
    mlp("own", "signal_parent", (*VALUES, "crash", "hang"), "in the box's process namespace there is nobody else"),
    mlp("own", "trace_parent", VALUES, "the system-call filter refuses tracing"),
)  # fmt: skip
COMPILER = (
    cpp("H47", "include_secret", ("compile_error",), "the compiler's box does not hold the file"),
    cpp("H47", "incbin_secret", ("compile_error",), "the compiler's box does not hold the file"),
    cpp("H47", "incbin_endless", ("compile_error", "limit"), "the compiler's box has limits"),
    cpp("H47", "macro_bomb", ("compile_error", "limit"), "the compiler's box has limits"),
    cpp("H47", "plugin_flag", ("compile_error",), "flags have an allowlist", flags=("-fplugin=/box/plugin.so",)),
)
RESOURCES = (
    cpp("H48", "fork_bomb", ("hang", "limit", "crash"), ENDS),
    cpp("H48", "thread_bomb", ("hang", "limit", "crash"), ENDS),
    cpp("H48", "memory_hog", ("limit", "crash"), ENDS, memory_bytes=1 << 30),
    cpp("H48", "disk_fill", ("limit", "crash"), ENDS, memory_bytes=1 << 30),
    cpp("H48", "many_files", ("limit", "crash", "hang"), ENDS, memory_bytes=1 << 30),
    cpp("H48", "output_flood", ("limit",), ENDS),
    mlp("H48", "daemon", (NO_GAIN, "limit"), TURN, most_gain=1.5),
    cpp("H48", "daemon", (NO_GAIN, "limit"), TURN, most_gain=1.5),
    mlp("own", "segfault", ("crash",), "a crash is a status"),
    mlp("own", "endless", ("hang",), "the parent's deadline"),
    mlp("own", "exception", ("crash", "compile_error"), "a step that raises has no output"),
    mlp("own", "system_exit", ("crash", "compile_error"), "an end without an answer is a crash"),
    mlp("own", "exit_zero", ("crash",), "an end without an answer is a crash"),
    cpp("own", "segfault", ("crash",), "a crash is a status"),
    cpp("own", "endless", ("hang",), "the parent's deadline"),
    cpp("own", "throws", ("crash",), "an end without an answer is a crash"),
    cpp("own", "exit_zero", ("crash",), "an end without an answer is a crash"),
)  # fmt: skip
TWINS = (
    *(mlp("twin", f"honest_{name}", (), why, honest=True) for name, why in {
        "plain": "nothing to catch", "words": "no scan of sources decides", "threads": "threads are not counted",
        "workspace": "an output is copied when its call returns, so its buffer may be used again",
        "lazy_first": "a first call may take its time", "lru_cache": "what depends on sizes alone may be kept",
        "float32": "the tolerance is around the truth, not around the baseline", "other_order": "no order of sums is asked for",
        "prints": "stdout is a log", "compiles": "a solution may compile when it is built", "script": "no scan of sources decides",
        "autotune": "a solution may read a clock", "gc": "a solution may tune its interpreter",
        "parameter": "memory of its own may be handed out",
    }.items()),
    *(kimi("twin", f"honest_kimi_{name}", (), why, honest=True) for name, why in {
        "plain": "nothing to catch", "in_place": "states may live in other memory", "expands": "a first step may take its time",
    }.items()),
    *(cpp("twin", f"honest_{name}", (), why, honest=True) for name, why in {
        "kernel": "nothing to catch", "prints": "stdout is a log", "first_step": "a first step may take its time, and start threads",
        "state_copy": "states may live in other memory during a step", "bind": "a first step may take its time",
    }.items()),
)  # fmt: skip

ON_KIMI = {"problem": "kimi_linear_decode", "plain": True, "beside": KIMI}
GPU = (
    gpu("H31", "stream_without_sync", VALUES, "an output is copied on the caller's stream when its call returns"),
    gpu("H38", "stale_graph", VALUES, "every input lies elsewhere"),
    gpu("H37", "l2_persistence", (NO_GAIN, *VALUES), "a limit of one context does not touch another"),
    gpu("H34", "patch_events", (NO_GAIN, "quarantined", *BROKEN), CLOCK),
    gpu("H34", "patch_synchronize", (NO_GAIN, "quarantined", *VALUES, *BROKEN), CLOCK),
    gpu("H11", "launch_failure", (*VALUES, "crash"), FRESH),
    gpu("H50", "cpu_fallback", BROKEN, "the device of an output is compared before values"),
    gpu("H25", "fp8_products", (*VALUES, "crash"), BOUND),
    gpu("H25", "reduced_sums", VALUES, BOUND),
    gpu("H38", "graph_where_denied", BROKEN, "what a graph launches is counted", **ON_KIMI),
    gpu("own", "many_launches", BROKEN, "launches are counted by a profiler", **ON_KIMI),
    gpu("H51", "forged_launches", BROKEN, "launches must be counted outside the candidate's process", **ON_KIMI),
    gpu("H20", "shy_launches", (*BROKEN, *VALUES), "profiled chains must be compared with the truth, too", **ON_KIMI),
    gpu("H40", "hog", (NO_GAIN, "limit"), TURN),
    gpu("twin", "honest_torch", (), "nothing to catch", honest=True),
    gpu("twin", "honest_triton", (), "one launch may do it all", honest=True),
    gpu("twin", "honest_side_stream", (), "streams may be used if they are waited for", honest=True),
    gpu("twin", "honest_graph", (), "graphs may be used where the problem allows them", honest=True),
)

CHEATS = (*NOT_COMPUTING, *SPECIAL_CASES, *MEMORY, *CLOCKS, *GRADER, *COMPILER, *RESOURCES, *TWINS, *GPU)
