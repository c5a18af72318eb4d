// Honest twin of forged output: prints lines that look like answers, in moderation, on both outputs.
#include <cstdio>
#define kb_step honest_step
//@honest kernel
#undef kb_step
KB_API int32_t kb_step(void* h, int64_t position) {
    static int said = 0;
    if (said++ < 50) {
        std::printf("{\"ok\": true, \"step\": %lld}\n", static_cast<long long>(position));
        std::fflush(stdout);
        std::fprintf(stderr, "PASS? FAIL? only words\n");
    }
    return honest_step(h, position);
}
