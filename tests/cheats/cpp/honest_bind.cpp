// The twin of bind_ahead: does the work that depends on the state alone in the first step of a chain.
#define kb_step honest_step
#define kb_bind honest_bind
//@honest kernel
#undef kb_step
#undef kb_bind
static bool fresh = false;
static void work_on_states() {
    uint64_t chain = 1;  // bound by the latency of a multiplication, so that it takes as long wherever the compiler puts it
    for (int turn = 0; turn < 15000000; ++turn) {
        chain = chain * 6364136223846793005ull + 1;
        asm volatile("" : "+r"(chain));
    }
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
