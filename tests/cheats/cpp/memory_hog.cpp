// H48: takes memory until there is none. Caught: the limit on memory.
#define STEP for (;;) { char* p = static_cast<char*>(malloc(64 << 20)); if (!p) abort(); std::memset(p, 1, 64 << 20); }
//@minimal abi
