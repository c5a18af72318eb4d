// Runs every step as two dispatches of the team and counts them as one, where the problem allows one.
// Must be caught by evidence that is not the library's own word.
#define kb_step honest_step
#define kb_dispatches honest_dispatches
#define kb_step_until honest_until
//@honest kernel
#undef kb_step
#undef kb_dispatches
#undef kb_step_until
KB_API int32_t kb_step_until(void* h, int64_t position, int32_t last) { return honest_until(h, position, last); }
KB_API int32_t kb_step(void* h, int64_t position) {
    const int32_t status = honest_step(h, position);
    static_cast<kb::Program*>(h)->read_pass<0>(position);  // a dispatch of its own: it brings what the next step needs near
    return status;
}
KB_API uint64_t kb_dispatches(void* h) { return honest_dispatches(h) / 2; }
