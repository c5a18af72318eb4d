// Right outputs of single steps, but the state of the second block is put back as it was: nothing to write.
// Caught: all states are compared after a step.
#include <cstring>
#include <string>
#include <vector>
#define kb_step honest_step
#define kb_bind honest_bind
//@honest kernel
#undef kb_step
#undef kb_bind
static char* state = nullptr;
static std::vector<char> before;
KB_API int32_t kb_bind(void* h, const kb_tensor* t, int32_t n, char* err, int32_t errlen) {
    for (int i = 0; i < n; ++i)
        if (!std::strcmp(t[i].name, "blocks.1.S")) {
            state = static_cast<char*>(t[i].data);
            before.assign(state, state + t[i].bytes);
        }
    return honest_bind(h, t, n, err, errlen);
}
KB_API int32_t kb_step(void* h, int64_t position) {
    const int32_t status = honest_step(h, position);
    std::memcpy(state, before.data(), before.size());
    return status;
}
