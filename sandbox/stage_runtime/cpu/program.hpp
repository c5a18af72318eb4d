// The machinery around an assembled plan: packing, buffers, binding, the C ABI. The assembler writes the tables it reads:
// namespace plan { kBlocks, kPhaseCount, kPhases[], kStages[], kNodes[], kBuffers[], kExternals[], kEvents, kName }.
#pragma once
#include "runtime.hpp"

struct kb_tensor {
    const char* name;
    void* data;
    uint64_t bytes;
};

namespace kb {

enum Home : int { kExternal, kShared, kPrivate, kPartial };

struct StageInfo {
    int pages;
    size_t page_bytes, scratch_bytes;
    const char* (*pack)(const Unit&, std::byte*);
};
template <class S>
constexpr StageInfo stage_info() {
    static_assert(S::kPageBytes % 64 == 0, "pages are whole cache lines");
    if constexpr (S::kPages > 0) return {S::kPages, S::kPageBytes, S::kScratchBytes, &S::pack};
    else return {0, 0, S::kScratchBytes, nullptr};
}
struct SegmentInfo {
    const char* tensor;
    int form;  // 0 w4, 1 bf16, 2 raw
    Segment segment;
};
struct PortInfo {  // what the read pass and the binding need to know of a port
    int buffer;    // index into kBuffers, or -1 - index into kExternals
    int element_bytes;
    int box, rows, stride;
    bool state, cache;  // state: changed in place; cache: rows 0..position-1 are read
};
struct NodeInfo {
    const char* name;
    int stage, layer, units, period, experts, selects;  // selects: port with the expert ids, -1 if static
    const SegmentInfo* segments;
    int segment_count;
    const PortInfo* ports;
    int port_count;
};
struct Items {
    const int* item;
    int count;
};
struct StepInfo {
    int node;
    const Items* owned;  // [blocks]
};
struct BufferInfo {
    const char* tensor;
    Home home;
    int copies;
    size_t bytes, offset;  // of one copy; offset into the arena
    int element_bytes;
};
constexpr int kMaxPorts = 10;
struct StepArgs {
    const std::byte* pages;
    void* port[kMaxPorts];
    int layer;
};
struct Zero {
    int buffer;
    const int* by;  // block that zeroes copy c
};
using PhaseFn = bool (*)(Block&, const StepArgs*, Launch, Grid&, int phase);
struct PhaseInfo {
    const char* name;
    PhaseFn run;
    const StepInfo* steps;
    int step_count;
    const Zero* zero;
    int zero_count;
    bool barrier;
};
struct ExternalInfo {
    const char* name;
    uint64_t bytes;  // 0: capacity rows, checked against row_bytes * max_position
    uint64_t row_bytes;
};

}  // namespace kb
