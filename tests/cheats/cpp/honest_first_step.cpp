// Honest twin of phase splits: takes room and starts a helper thread at the first step, which joins in every step from then on.
#include <atomic>
#include <thread>
#include <vector>
#define kb_step honest_step
//@honest kernel
#undef kb_step
namespace {
struct Helper {
    std::atomic<int> turn{0};
    std::atomic<bool> leave{false};
    std::vector<float> room = std::vector<float>(1 << 14);
    std::thread thread{[this] {
        while (!leave.load())
            if (turn.load() == 1) {
                for (float& x : room) x = 0.5f * x + 1.0f;
                turn.store(0);
            } else {
                std::this_thread::yield();
            }
    }};
    ~Helper() { leave = true, thread.join(); }
};
Helper* helper = nullptr;
}  // namespace
KB_API int32_t kb_step(void* h, int64_t position) {
    if (!helper) helper = new Helper;  // outlives the library: the process ends without destructors
    helper->turn.store(1);
    const int32_t status = honest_step(h, position);
    while (helper->turn.load() == 1) std::this_thread::yield();
    return status;
}
