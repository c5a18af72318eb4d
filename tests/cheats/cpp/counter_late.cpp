// H06: honest for four steps of a process, idle afterwards. Caught: timed chains are compared with the truth.
#include <cstring>
#define kb_step honest_step
#define kb_bind honest_bind
//@honest kernel
#undef kb_step
#undef kb_bind
static void *token = nullptr, *hidden = nullptr;
static size_t size = 0;
KB_API int32_t kb_bind(void* h, const kb_tensor* t, int32_t n, char* err, int32_t errlen) {
    for (int i = 0; i < n; ++i) {
        if (!std::strcmp(t[i].name, "token")) token = t[i].data;
        if (!std::strcmp(t[i].name, "hidden")) hidden = t[i].data, size = t[i].bytes;
    }
    return honest_bind(h, t, n, err, errlen);
}
KB_API int32_t kb_step(void* h, int64_t position) {
    static int calls = 0;
    if (++calls <= 4) return honest_step(h, position);
    return std::memcpy(hidden, token, size), 0;
}
