// Throws through the C ABI, which ends the process. Caught: an end without an answer is a crash.
#include <stdexcept>
#define STEP throw std::runtime_error("no kernel image is available")
//@minimal abi
