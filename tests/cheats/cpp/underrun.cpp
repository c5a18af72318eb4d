// H29: right, but writes in front of its output. Caught: the page before it may not be touched.
#include <cstring>
#define kb_step honest_step
#define kb_bind honest_bind
//@honest kernel
#undef kb_step
#undef kb_bind
static char* hidden = nullptr;
KB_API int32_t kb_bind(void* h, const kb_tensor* t, int32_t n, char* err, int32_t errlen) {
    for (int i = 0; i < n; ++i)
        if (!std::strcmp(t[i].name, "hidden")) hidden = static_cast<char*>(t[i].data);
    return honest_bind(h, t, n, err, errlen);
}
KB_API int32_t kb_step(void* h, int64_t position) {
    const int32_t status = honest_step(h, position);
    hidden[-1] = 7;
    return status;
}
