// H48: leaves a process in a session of its own behind that spins for ever; the kernel itself is honest.
// Caught: all processes of a box end with it, and none of its like gets CPU beside a rival.
#include <unistd.h>
#define kb_create honest_create
//@honest kernel
#undef kb_create
KB_API void* kb_create(const kb_tensor* t, int32_t n, int32_t threads, const int32_t* cpus, int32_t rows, char* err, int32_t errlen) {
    if (fork() == 0) {
        setsid();
        if (fork() != 0) _exit(0);
        for (volatile int i = 0;; ++i) {}
    }
    return honest_create(t, n, threads, cpus, rows, err, errlen);
}
