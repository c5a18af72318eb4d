// H26: uses the token as scratch memory. Caught: inputs must come back unchanged.
#include <cstring>
#define kb_step honest_step
#define kb_bind honest_bind
//@honest kernel
#undef kb_step
#undef kb_bind
static void* token = nullptr;
static size_t size = 0;
KB_API int32_t kb_bind(void* h, const kb_tensor* t, int32_t n, char* err, int32_t errlen) {
    for (int i = 0; i < n; ++i)
        if (!std::strcmp(t[i].name, "token")) token = t[i].data, size = t[i].bytes;
    return honest_bind(h, t, n, err, errlen);
}
KB_API int32_t kb_step(void* h, int64_t position) {
    const int32_t status = honest_step(h, position);
    std::memset(token, 0, size);
    return status;
}
