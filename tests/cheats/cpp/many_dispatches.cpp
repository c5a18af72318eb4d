// Two dispatches a step where one is allowed, and says so. Caught: the count is above the problem's limit.
#define kb_step honest_step
//@honest kernel
#undef kb_step
KB_API int32_t kb_step(void* h, int64_t position) {
    const int32_t status = honest_step(h, position);
    static_cast<kb::Program*>(h)->read_pass<0>(position);  // a dispatch of its own: it brings what the next step needs near
    return status;
}
