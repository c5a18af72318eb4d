// H35: overwrites clock_gettime in memory with code that leaves the time as it was, then takes three times as long as it should.
// Fools a harness that times in its own process. Caught: the judge's clock is in another process.
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#define kb_step honest_step
#define kb_create honest_create
//@honest kernel
#undef kb_step
#undef kb_create
static void freeze() {
#if defined(__x86_64__)
    const unsigned char stub[] = {0x48, 0xc7, 0x06, 1, 0, 0, 0, 0x48, 0xc7, 0x46, 0x08, 1, 0, 0, 0, 0x31, 0xc0, 0xc3};  // *ts = {1, 1}; return 0
#elif defined(__aarch64__)
    const unsigned char stub[] = {0x22, 0, 0x80, 0xd2, 0x22, 0x08, 0, 0xa9, 0, 0, 0x80, 0x52, 0xc0, 0x03, 0x5f, 0xd6};
    // mov x2, #1; stp x2, x2, [x1]; mov w0, #0; ret
#endif
    char* code = static_cast<char*>(dlsym(RTLD_DEFAULT, "clock_gettime"));
    const long page = sysconf(_SC_PAGESIZE);
    char* base = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(code) & ~uintptr_t(page - 1));
    if (code && mprotect(base, size_t(2 * page), PROT_READ | PROT_WRITE | PROT_EXEC) == 0) {
        std::memcpy(code, stub, sizeof stub);
        __builtin___clear_cache(code, code + sizeof stub);
    }
}
KB_API void* kb_create(const kb_tensor* t, int32_t n, int32_t threads, const int32_t* cpus, int32_t rows, char* err, int32_t errlen) {
    void* made = honest_create(t, n, threads, cpus, rows, err, errlen);
    freeze();
    return made;
}
KB_API int32_t kb_step(void* h, int64_t position) {
    const int32_t status = honest_step(h, position);
    for (uint64_t spin = 0; spin < 20000000; ++spin) asm volatile("" : : "r"(spin));
    return status;
}
