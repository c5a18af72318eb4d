// The C ABI of a candidate over the assembled plan. Included after namespace plan.
#pragma once
#include "program.hpp"

namespace kb {

class Program {
public:
    std::string error, description;

    Program(const kb_tensor* weights, int n, const int32_t* cpus, int max_position)
        : max_position_(max_position), grid_(plan::kBlocks, plan::kEventCount), arena_(plan::kArenaBytes), crew_(plan::kBlocks, cpus, this) {
        size_t scratch = 0, packed = 0;
        for (const auto& s : plan::kStages) scratch = scratch > s.scratch_bytes ? scratch : s.scratch_bytes;
        scratch = (scratch + 4095) & ~size_t(4095);
        scratch_.reset(new Arena(scratch * plan::kBlocks + 4096));
        for (int i = 0; i < plan::kNodeCount; ++i) offset_[i] = packed, packed += (node_bytes(i) + 4095) & ~size_t(4095);
        packed_.reset(new Arena(packed + 4096));
        for (int i = 0; i < plan::kBlocks; ++i) {
            crew_.block(i).scratch = scratch_->data() + scratch * size_t(i);
            stamps_[i].assign(size_t(plan::kPhaseCount) * 3, 0);
            crew_.block(i).stamps = stamps_[i].data();
        }
        for (int i = 0; i < plan::kNodeCount; ++i) pack_node(i, weights, n);
        describe();
    }

    void bind(const kb_tensor* t, int n) {
        void* external[plan::kExternalCount + 1] = {};
        for (int e = 0; e < plan::kExternalCount; ++e) {
            const ExternalInfo& x = plan::kExternals[e];
            const kb_tensor* found = find(t, n, x.name);
            if (!found) throw std::string("no tensor '") + x.name + "' was bound";
            const uint64_t want = x.bytes ? x.bytes : x.row_bytes * uint64_t(max_position_);
            if (x.bytes ? found->bytes != want : found->bytes < want)
                throw std::string("tensor '") + x.name + "' has " + std::to_string(found->bytes) + " bytes, expected " + std::to_string(want);
            external[e] = found->data;
        }
        std::memset(arena_.data(), 0x7f, plan::kArenaBytes);  // 3.4e38 as floats: what is read before it is written shows
        size_t at = 0;
        for (int p = 0; p < plan::kPhaseCount; ++p) {
            phase_args_[p] = &args_[at];
            for (int s = 0; s < plan::kPhases[p].step_count; ++s) {
                const int node = plan::kPhases[p].steps[s].node;
                const NodeInfo& info = plan::kNodes[node];
                StepArgs& a = args_[at++];
                a.pages = packed_->data() + offset_[node];
                a.layer = info.layer;
                for (int i = 0; i < info.port_count; ++i) {
                    const int b = info.ports[i].buffer;
                    a.port[i] = b >= 0 ? static_cast<void*>(arena_.data() + plan::kBuffers[b].offset) : external[-1 - b];
                }
            }
        }
        bound_ = true;
    }

    int step(int64_t position, int last) {
        if (!bound_) return error = "kb_step before kb_bind", 1;
        if (position < 0 || position >= max_position_)
            return error = "position " + std::to_string(position) + " is outside 0.." + std::to_string(max_position_ - 1), 1;
        run_.position = position;
        last_ = last < 0 ? plan::kPhaseCount - 1 : last;
        grid_.reset();
        start_ = now_ns();
        crew_.dispatch([](void* self, Block& b) { static_cast<Program*>(self)->run_block(b); });
        if (grid_.abort.raised.load(std::memory_order_acquire)) return post_mortem(), 2;
        return 0;
    }

    template <int Variant>
    void read_pass(int64_t position) {
        run_.position = position;
        grid_.reset();
        crew_.dispatch([](void* self, Block& b) { static_cast<Program*>(self)->template read_block<Variant>(b); });
    }

    int dump(const char* tensor, void* dst, uint64_t bytes) {
        for (int i = 0; i < plan::kBufferCount; ++i) {
            const BufferInfo& b = plan::kBuffers[i];
            if (std::strcmp(b.tensor, tensor) != 0) continue;
            if (bytes != b.bytes) return error = std::string(tensor) + " has " + std::to_string(b.bytes) + " bytes", 1;
            std::memcpy(dst, arena_.data() + b.offset, bytes);  // a private buffer shows block 0's copy
            if (b.home == kPartial)
                for (int c = 1; c < b.copies; ++c)
                    for (size_t e = 0; e < bytes / 4; ++e) {
                        float x, y;
                        std::memcpy(&x, static_cast<char*>(dst) + 4 * e, 4);
                        std::memcpy(&y, arena_.data() + b.offset + size_t(c) * b.bytes + 4 * e, 4);
                        x += y;
                        std::memcpy(static_cast<char*>(dst) + 4 * e, &x, 4);
                    }
            return 0;
        }
        return error = std::string("no buffer '") + tensor + "'", 1;
    }
    int stamps(uint64_t* ns, int capacity) {  // [block][phase][begin, end of work, end of barrier], ns since the step's start
        int n = 0;
        for (int b = 0; b < plan::kBlocks; ++b)
            for (size_t i = 0; i < stamps_[b].size(); ++i, ++n)
                if (n < capacity) ns[n] = stamps_[b][i] > start_ ? stamps_[b][i] - start_ : 0;
        return n;
    }
    uint64_t dispatches() const { return crew_.dispatches(); }

private:
    static size_t unit_bytes(int node) {
        const StageInfo& s = plan::kStages[plan::kNodes[node].stage];
        return size_t(s.pages) * s.page_bytes;
    }
    static size_t node_bytes(int node) { return unit_bytes(node) * size_t(plan::kNodes[node].units); }
    static const kb_tensor* find(const kb_tensor* t, int n, const std::string& name) {
        for (int i = 0; i < n; ++i)
            if (name == t[i].name) return &t[i];
        return nullptr;
    }
    static const uint8_t* canonical(const kb_tensor* t, int n, const std::string& name, uint64_t bytes) {
        const kb_tensor* found = find(t, n, name);
        if (!found) throw "the weights lack '" + name + "'";
        if (found->bytes != bytes) throw "weight '" + name + "' has " + std::to_string(found->bytes) + " bytes, expected " + std::to_string(bytes);
        return static_cast<const uint8_t*>(found->data);
    }
    void pack_node(int node, const kb_tensor* t, int n) {
        const NodeInfo& info = plan::kNodes[node];
        const StageInfo& stage = plan::kStages[info.stage];
        if (info.units == 0 || stage.pages == 0) return;
        std::vector<Canonical> c(size_t(info.segment_count));
        std::vector<Segment> segments;
        for (int s = 0; s < info.segment_count; ++s) {
            const SegmentInfo& g = info.segments[s];
            const std::string name = g.tensor;
            const uint64_t plane = uint64_t(g.segment.rows) * uint64_t(g.segment.cols), e = uint64_t(info.experts);
            if (g.form == 0) {
                c[size_t(s)].q = canonical(t, n, name + ".w_q", e * plane / 2);
                c[size_t(s)].scales = reinterpret_cast<const bf16*>(canonical(t, n, name + ".scales", e * plane / 64));
                c[size_t(s)].zeros = reinterpret_cast<const bf16*>(canonical(t, n, name + ".zeros", e * plane / 64));
            } else {
                c[size_t(s)].raw = reinterpret_cast<const bf16*>(canonical(t, n, name, 2 * plane));
            }
            segments.push_back(g.segment);
        }
        std::atomic<const char*> refusal{nullptr};
        const int workers = plan::kBlocks < info.units ? plan::kBlocks : info.units;
        std::vector<std::thread> threads;
        for (int w = 0; w < workers; ++w)
            threads.emplace_back([&, w] {
                for (int u = w * info.units / workers; u < (w + 1) * info.units / workers; ++u)
                    if (const char* why = stage.pack(Unit{c.data(), segments.data(), info.period, u}, packed_->data() + offset_[node] + size_t(u) * unit_bytes(node)))
                        refusal.store(why);
            });
        for (auto& th : threads) th.join();
        if (refusal.load()) throw std::string(info.name) + " cannot hold these weights: " + refusal.load();
    }

    void run_block(Block& b) {
        b.passed = 0;
        for (int p = 0; p <= last_; ++p) {
            const PhaseInfo& phase = plan::kPhases[p];
            b.stamps[3 * p] = now_ns();
            for (int z = 0; z < phase.zero_count; ++z) {
                const BufferInfo& f = plan::kBuffers[phase.zero[z].buffer];
                for (int c = 0; c < f.copies; ++c)
                    if (phase.zero[z].by[c] == b.id) std::memset(arena_.data() + f.offset + size_t(c) * f.bytes, 0, f.bytes);
            }
            if (!phase.run(b, phase_args_[p], run_, grid_, p)) return;
            b.stamps[3 * p + 1] = now_ns();
            if (phase.barrier && p < last_ && !grid_.barrier(b, p)) return;
            b.stamps[3 * p + 2] = now_ns();
        }
    }

    template <int Variant>
    void read_block(Block& b) {
        uint64_t seen = 0;
        for (int p = 0; p < plan::kPhaseCount; ++p)
            for (int s = 0; s < plan::kPhases[p].step_count; ++s) {
                const StepInfo& step = plan::kPhases[p].steps[s];
                const NodeInfo& info = plan::kNodes[step.node];
                const StepArgs& a = phase_args_[p][s];
                const size_t unit = unit_bytes(step.node);
                for (int k = 0; k < step.owned[b.id].count; ++k) {
                    const int item = step.owned[b.id].item[k];
                    if (unit > 0) seen |= read_bytes<Variant>(a.pages + size_t(unit_of(info, a, item, b.id)) * unit, unit);
                    for (int i = 0; i < info.port_count; ++i) {
                        const PortInfo& port = info.ports[i];
                        const size_t box = size_t(port.box) * size_t(port.element_bytes);
                        if (port.state)
                            for (int r = 0; r < port.rows; ++r)
                                seen |= read_bytes<Variant>(static_cast<char*>(a.port[i]) + size_t(item) * box + size_t(r) * size_t(port.stride) * size_t(port.element_bytes), box);
                        if (port.cache) seen |= read_bytes<Variant>(a.port[i], size_t(run_.position) * size_t(port.stride) * size_t(port.element_bytes));
                    }
                }
            }
        asm volatile("" : : "r"(seen) : "memory");
    }
    static int unit_of(const NodeInfo& info, const StepArgs& a, int item, int block) {
        if (info.selects < 0) return info.units == 1 ? 0 : item;
        const int buffer = info.ports[info.selects].buffer;
        const char* ids = static_cast<const char*>(a.port[info.selects]);
        if (buffer >= 0 && plan::kBuffers[buffer].home == kPrivate) ids += plan::kBuffers[buffer].bytes * size_t(block);
        int32_t id;
        std::memcpy(&id, ids + 4 * (item / info.period), 4);
        return id * info.period + item % info.period;
    }

    void post_mortem() {
        const Abort& a = grid_.abort;
        error = "hang: block " + std::to_string(a.block) + " waited in phase " + std::to_string(a.phase) + " (" + plan::kPhases[a.phase].name + ") on " + a.what +
                ": counter " + std::to_string(a.have) + ", needs " + std::to_string(a.want);
    }
    void describe() {
        std::string& d = description;
        d = std::string("{\"plan\":\"") + plan::kName + "\",\"blocks\":" + std::to_string(plan::kBlocks) + ",\"phases\":[";
        for (int p = 0; p < plan::kPhaseCount; ++p) {
            uint64_t bytes = 0;
            for (int s = 0; s < plan::kPhases[p].step_count; ++s) {
                const StepInfo& step = plan::kPhases[p].steps[s];
                for (int b = 0; b < plan::kBlocks; ++b) bytes += uint64_t(step.owned[b].count) * unit_bytes(step.node);
            }
            d += std::string(p ? "," : "") + "{\"name\":\"" + plan::kPhases[p].name + "\",\"page_bytes\":" + std::to_string(bytes) + "}";
        }
        uint64_t packed = 0;
        for (int i = 0; i < plan::kNodeCount; ++i) packed += node_bytes(i);
        d += "],\"packed_bytes\":" + std::to_string(packed) + "}";
    }

    int64_t max_position_;
    int last_ = 0;
    bool bound_ = false;
    uint64_t start_ = 0;
    Launch run_;
    Grid grid_;
    Arena arena_;
    std::unique_ptr<Arena> scratch_, packed_;
    size_t offset_[plan::kNodeCount] = {};
    StepArgs args_[plan::kStepCount] = {};
    const StepArgs* phase_args_[plan::kPhaseCount] = {};
    std::vector<uint64_t> stamps_[plan::kBlocks];
    Crew crew_;  // last: its threads end before what they use
};

inline void say(char* err, int32_t n, const std::string& what) {
    if (err && n > 0) std::snprintf(err, size_t(n), "%s", what.c_str());
}

}  // namespace kb

#define KB_API extern "C" __attribute__((visibility("default")))

KB_API const char* kb_abi() { return "kernelbraid-step-1"; }
KB_API void* kb_create(const kb_tensor* weights, int32_t n, int32_t threads, const int32_t* cpus, int32_t max_position, char* err, int32_t errlen) {
    if (threads != plan::kBlocks) return kb::say(err, errlen, "this kernel was assembled for " + std::to_string(plan::kBlocks) + " threads"), nullptr;
    try {
        return new kb::Program(weights, n, cpus, max_position);
    } catch (const std::string& why) {
        kb::say(err, errlen, why);
    } catch (const std::exception& why) {
        kb::say(err, errlen, why.what());
    }
    return nullptr;
}
KB_API int32_t kb_bind(void* h, const kb_tensor* externals, int32_t n, char* err, int32_t errlen) {
    try {
        return static_cast<kb::Program*>(h)->bind(externals, n), 0;
    } catch (const std::string& why) {
        return kb::say(err, errlen, why), 1;
    }
}
KB_API int32_t kb_step(void* h, int64_t position) { return static_cast<kb::Program*>(h)->step(position, -1); }
KB_API int32_t kb_step_until(void* h, int64_t position, int32_t last) { return static_cast<kb::Program*>(h)->step(position, last); }
KB_API uint64_t kb_dispatches(void* h) { return static_cast<kb::Program*>(h)->dispatches(); }
KB_API const char* kb_describe(void* h) { return static_cast<kb::Program*>(h)->description.c_str(); }
KB_API const char* kb_error(void* h) { return static_cast<kb::Program*>(h)->error.c_str(); }
KB_API int32_t kb_stamps(void* h, uint64_t* ns, int32_t capacity) { return static_cast<kb::Program*>(h)->stamps(ns, capacity); }
KB_API int32_t kb_dump(void* h, const char* tensor, void* dst, uint64_t bytes) { return static_cast<kb::Program*>(h)->dump(tensor, dst, bytes); }
KB_API int32_t kb_read_pass(void* h, int64_t position, int32_t variant) {
    auto* p = static_cast<kb::Program*>(h);
    variant == 1 ? p->read_pass<1>(position) : variant == 2 ? p->read_pass<2>(position) : p->read_pass<0>(position);
    return 0;
}
KB_API void kb_destroy(void* h) { delete static_cast<kb::Program*>(h); }
