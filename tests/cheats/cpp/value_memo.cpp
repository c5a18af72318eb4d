// H03: keeps the last token and output in memory of its own, compares all bytes, and copies. Else the step is computed three times.
// Caught: values are fresh for every chain and change from step to step, so it only ever pays.
#include <cstring>
#include <vector>
#define kb_step honest_step
#define kb_bind honest_bind
//@honest kernel
#undef kb_step
#undef kb_bind
static char *token = nullptr, *hidden = nullptr;
static std::vector<char> asked, answer;
static size_t size = 0;
KB_API int32_t kb_bind(void* h, const kb_tensor* t, int32_t n, char* err, int32_t errlen) {
    for (int i = 0; i < n; ++i) {
        if (!std::strcmp(t[i].name, "token")) token = static_cast<char*>(t[i].data);
        if (!std::strcmp(t[i].name, "hidden")) hidden = static_cast<char*>(t[i].data), size = t[i].bytes;
    }
    return honest_bind(h, t, n, err, errlen);
}
KB_API int32_t kb_step(void* h, int64_t position) {
    if (asked.size() == size && !std::memcmp(asked.data(), token, size)) return std::memcpy(hidden, answer.data(), size), 0;
    asked.assign(token, token + size);
    const int32_t status = honest_step(h, position);
    answer.assign(hidden, hidden + size);
    for (uint64_t spin = 0; spin < 20000000; ++spin) asm volatile("" : : "r"(spin));
    return status;
}
