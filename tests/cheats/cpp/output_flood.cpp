// H48: prints a gigabyte. Caught: the limit on output.
#define STEP for (uint64_t i = 0; i < 1ull << 24; ++i) std::puts("a line of a flood of output that goes on and on and on");
//@minimal abi
