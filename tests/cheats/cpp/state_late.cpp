// Answers with the state still to be written: a thread writes it a moment later.
// Caught: states are read as soon as the answer is there; and a library that is late is wrong at the next step.
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>
#define kb_step honest_step
#define kb_bind honest_bind
//@honest kernel
#undef kb_step
#undef kb_bind
namespace {
struct State { char* theirs; std::vector<char> mine; };
std::vector<State> states;
std::thread writer;
}  // namespace
KB_API int32_t kb_bind(void* h, const kb_tensor* t, int32_t n, char* err, int32_t errlen) {
    if (writer.joinable()) writer.join();
    states.clear();
    states.reserve(size_t(n));
    std::vector<kb_tensor> own(t, t + n);
    for (auto& x : own) {
        const std::string name = x.name;
        if (name.size() < 2 || name.substr(name.size() - 2) != ".S") continue;
        states.push_back({static_cast<char*>(x.data), std::vector<char>(static_cast<char*>(x.data), static_cast<char*>(x.data) + x.bytes)});
        x.data = states.back().mine.data();
    }
    return honest_bind(h, own.data(), n, err, errlen);
}
KB_API int32_t kb_step(void* h, int64_t position) {
    if (writer.joinable()) writer.join();
    const int32_t status = honest_step(h, position);
    writer = std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        for (auto& s : states) std::memcpy(s.theirs, s.mine.data(), s.mine.size());
    });
    return status;
}
