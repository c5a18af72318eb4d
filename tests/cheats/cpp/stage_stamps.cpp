// H35: a stage alone whose stamps say a tenth of the truth; a stage is timed by its own stamps.
// Must be caught by a clock that is not the candidate's.
#define kb_stamps honest_stamps
//@honest kernel
#undef kb_stamps
KB_API int32_t kb_stamps(void* h, uint64_t* ns, int32_t capacity) {
    const int32_t count = honest_stamps(h, ns, capacity);
    for (int i = 0; i < count && i < capacity; ++i) ns[i] /= 10;
    return count;
}
