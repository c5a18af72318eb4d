// The state of the second block is written at the context's end, where steps are checked, and never after it.
// Caught: later steps of a timed chain read that state.
#include <cstring>
#include <vector>
#define kb_step honest_step
#define kb_bind honest_bind
//@honest kernel
#undef kb_step
#undef kb_bind
static char* state = nullptr;
static size_t size = 0;
KB_API int32_t kb_bind(void* h, const kb_tensor* t, int32_t n, char* err, int32_t errlen) {
    for (int i = 0; i < n; ++i)
        if (!std::strcmp(t[i].name, "blocks.1.S")) state = static_cast<char*>(t[i].data), size = t[i].bytes;
    return honest_bind(h, t, n, err, errlen);
}
KB_API int32_t kb_step(void* h, int64_t position) {
    if (position <= 48) return honest_step(h, position);
    const std::vector<char> before(state, state + size);
    const int32_t status = honest_step(h, position);
    std::memcpy(state, before.data(), size);
    return status;
}
