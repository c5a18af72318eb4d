// Never returns. Caught: the parent's deadline.
#define STEP for (volatile int i = 0;; ++i) {}
//@minimal abi
