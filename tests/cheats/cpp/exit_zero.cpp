// Ends with exit code 0 in the middle of a chain. Caught: an end without an answer is a crash.
#define kb_step honest_step
//@honest kernel
#undef kb_step
#include <unistd.h>
KB_API int32_t kb_step(void* h, int64_t position) {
    if (position > 48) _exit(0);
    return honest_step(h, position);
}
