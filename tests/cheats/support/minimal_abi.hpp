// The step ABI around nothing: a cheat defines CREATE and STEP (statements) before this is pasted in. `hidden` and `token` are bound.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
#ifndef CREATE
#define CREATE
#endif
#ifndef STEP
#define STEP
#endif
struct kb_tensor { const char* name; void* data; uint64_t bytes; };
#define API extern "C" __attribute__((visibility("default")))
static uint64_t steps_run, hidden_bytes;
static char *hidden, *token;
API const char* kb_abi() { return "kernelbraid-step-1"; }
API void* kb_create(const kb_tensor*, int32_t, int32_t, const int32_t*, int32_t, char*, int32_t) { CREATE; return &steps_run; }
API int32_t kb_bind(void*, const kb_tensor* t, int32_t n, char*, int32_t) {
    for (int i = 0; i < n; ++i) {
        if (!std::strcmp(t[i].name, "token")) token = static_cast<char*>(t[i].data);
        if (!std::strcmp(t[i].name, "hidden")) hidden = static_cast<char*>(t[i].data), hidden_bytes = t[i].bytes;
    }
    return 0;
}
API int32_t kb_step(void*, int64_t) {
    ++steps_run;
    std::memcpy(hidden, token, hidden_bytes);
    STEP;
    return 0;
}
API int32_t kb_step_until(void* h, int64_t p, int32_t) { return kb_step(h, p); }
API uint64_t kb_dispatches(void*) { return steps_run; }
API const char* kb_describe(void*) { return "{}"; }
API void kb_destroy(void*) {}
