// Appended to an assembled kernel: runs steps of it in a program of its own, so that ThreadSanitizer sees every thread.
// usage: program DUMP STEPS POSITION; DUMP holds tensors as (name length, name, bytes, data), weights first, then externals.
#include <fstream>
#include <list>

struct Loaded {
    std::string name;
    std::vector<char> data;
};

static std::vector<kb_tensor> table(std::list<Loaded>& tensors) {
    std::vector<kb_tensor> out;
    for (auto& t : tensors) out.push_back({t.name.c_str(), t.data.data(), t.data.size()});
    return out;
}

int main(int, char** argv) {
    std::ifstream in(argv[1], std::ios::binary);
    std::list<Loaded> part[2];
    for (auto& tensors : part) {
        uint64_t count = 0;
        in.read(reinterpret_cast<char*>(&count), 8);
        for (uint64_t i = 0; i < count; ++i) {
            uint64_t n = 0, bytes = 0;
            in.read(reinterpret_cast<char*>(&n), 8);
            tensors.push_back({std::string(n, ' '), {}});
            in.read(tensors.back().name.data(), std::streamsize(n));
            in.read(reinterpret_cast<char*>(&bytes), 8);
            tensors.back().data.resize(bytes);
            in.read(tensors.back().data.data(), std::streamsize(bytes));
        }
    }
    char err[512] = "";
    auto weights = table(part[0]), externals = table(part[1]);
    const int steps = std::atoi(argv[2]), position = std::atoi(argv[3]);
    void* h = kb_create(weights.data(), int32_t(weights.size()), plan::kBlocks, nullptr, position + steps, err, sizeof err);
    if (!h || kb_bind(h, externals.data(), int32_t(externals.size()), err, sizeof err) != 0) return std::fprintf(stderr, "%s\n", err), 2;
    for (int i = 0; i < steps; ++i)
        if (kb_step(h, position + i) != 0) return std::fprintf(stderr, "%s\n", kb_error(h)), 3;
    for (auto& t : part[1])
        if (t.name == "hidden")
            for (size_t i = 0; i < t.data.size(); i += 2) std::printf("%02x%02x", uint8_t(t.data[i + 1]), uint8_t(t.data[i]));
    std::printf("\n");
    kb_destroy(h);
}
