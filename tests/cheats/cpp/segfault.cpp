// Reads address zero. Caught: a crash is a status.
#define STEP *reinterpret_cast<volatile int*>(8) = 1
//@minimal abi
