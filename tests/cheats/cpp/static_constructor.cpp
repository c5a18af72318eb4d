// H36: does its work in a constructor that runs when the library is loaded, on inputs that it believes in, and copies the result later.
// Caught: nothing that a check asks is known at load.
#include <vector>
#define STEP std::memcpy(hidden, table.data(), hidden_bytes)
static std::vector<char> made_at_load() {
    std::vector<char> out(1 << 16);
    unsigned x = 1234;
    for (char& c : out) x = x * 1664525u + 1013904223u, c = static_cast<char>(x >> 24);
    return out;
}
static const std::vector<char> table = made_at_load();
//@minimal abi
