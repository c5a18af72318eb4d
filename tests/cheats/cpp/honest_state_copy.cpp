// Honest twin of state cheats: works on copies of its states and writes them back before it returns.
#include <cstring>
#include <string>
#include <vector>
#define kb_step honest_step
#define kb_bind honest_bind
//@honest kernel
#undef kb_step
#undef kb_bind
namespace {
struct State { char* theirs; std::vector<char> mine; };
std::vector<State> states;
}  // namespace
KB_API int32_t kb_bind(void* h, const kb_tensor* t, int32_t n, char* err, int32_t errlen) {
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
    const int32_t status = honest_step(h, position);
    for (auto& s : states) std::memcpy(s.theirs, s.mine.data(), s.mine.size());
    return status;
}
