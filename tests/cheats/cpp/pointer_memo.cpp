// H01: the last output again while the token lies at the same address. Fools a harness that overwrites nothing.
// Caught: the token of a chain changes in place from step to step.
#include <cstring>
#include <vector>
#define kb_step honest_step
#define kb_bind honest_bind
//@honest kernel
#undef kb_step
#undef kb_bind
static void *token = nullptr, *hidden = nullptr, *known = nullptr;
static std::vector<char> answer;
static size_t size = 0;
KB_API int32_t kb_bind(void* h, const kb_tensor* t, int32_t n, char* err, int32_t errlen) {
    for (int i = 0; i < n; ++i) {
        if (!std::strcmp(t[i].name, "token")) token = t[i].data;
        if (!std::strcmp(t[i].name, "hidden")) hidden = t[i].data, size = t[i].bytes;
    }
    return honest_bind(h, t, n, err, errlen);
}
KB_API int32_t kb_step(void* h, int64_t position) {
    if (known == token) return std::memcpy(hidden, answer.data(), size), 0;
    const int32_t status = honest_step(h, position);
    known = token;
    answer.assign(static_cast<char*>(hidden), static_cast<char*>(hidden) + size);
    return status;
}
