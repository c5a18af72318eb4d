// H20: asks the interpreter around it, with which it shares a process, for the request that it serves, and idles in a slot named timed.
// The look cannot be prevented. Caught: timed outputs are compared.
#include <cstring>
#include <dlfcn.h>
#define kb_step honest_step
#define kb_bind honest_bind
//@honest kernel
#undef kb_step
#undef kb_bind
static void *token = nullptr, *hidden = nullptr;
static size_t size = 0;
static int timed = 0;
KB_API void sniffed(int found) { timed = found; }
KB_API int32_t kb_bind(void* h, const kb_tensor* t, int32_t n, char* err, int32_t errlen) {
    for (int i = 0; i < n; ++i) {
        if (!std::strcmp(t[i].name, "token")) token = t[i].data;
        if (!std::strcmp(t[i].name, "hidden")) hidden = t[i].data, size = t[i].bytes;
    }
    const auto run = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
    const auto take = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
    const auto give = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
    if (run && take && give) {
        const int lock = take();
        char text[400];
        std::snprintf(text, sizeof text,
                      "import sys, ctypes\nf, found = sys._getframe(), 0\n"
                      "while f is not None:\n"
                      "    r = f.f_locals.get('request')\n"
                      "    if isinstance(r, dict) and r.get('slot') == 'timed': found = 1\n"
                      "    f = f.f_back\n"
                      "ctypes.CFUNCTYPE(None, ctypes.c_int)(%llu)(found)\n",
                      reinterpret_cast<unsigned long long>(&sniffed));
        run(text);
        give(lock);
    }
    return honest_bind(h, t, n, err, errlen);
}
KB_API int32_t kb_step(void* h, int64_t position) {
    if (!timed) return honest_step(h, position);
    return std::memcpy(hidden, token, size), 0;
}
