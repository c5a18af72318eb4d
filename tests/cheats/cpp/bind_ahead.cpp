// H36: does at bind, before the clock runs, what depends on the state alone. Its twin does the same in the first step of a chain.
// Must be caught by states that are not known before the clock runs, or by a time that holds the bind.
#define kb_step honest_step
#define kb_bind honest_bind
//@honest kernel
#undef kb_step
#undef kb_bind
static void work_on_states() {
    for (uint64_t spin = 0; spin < 60000000; ++spin) asm volatile("" : : "r"(spin));
}
KB_API int32_t kb_bind(void* h, const kb_tensor* t, int32_t n, char* err, int32_t errlen) {
    work_on_states();
    return honest_bind(h, t, n, err, errlen);
}
KB_API int32_t kb_step(void* h, int64_t position) { return honest_step(h, position); }
