// The twin of bind_ahead: does the work that depends on the state alone in the first step of a chain.
#define kb_step honest_step
#define kb_bind honest_bind
//@honest kernel
#undef kb_step
#undef kb_bind
static bool fresh = false;
static void work_on_states() {
    for (uint64_t spin = 0; spin < 60000000; ++spin) asm volatile("" : : "r"(spin));
}
KB_API int32_t kb_bind(void* h, const kb_tensor* t, int32_t n, char* err, int32_t errlen) {
    fresh = true;
    return honest_bind(h, t, n, err, errlen);
}
KB_API int32_t kb_step(void* h, int64_t position) {
    if (fresh) work_on_states();
    fresh = false;
    return honest_step(h, position);
}
