// H48: starts threads for ever. Caught: the limit on processes counts threads, too.
static void* rest(void*);
#define STEP for (;;) { pthread_t t; if (pthread_create(&t, nullptr, rest, nullptr)) abort(); }
//@minimal abi
static void* rest(void*) { for (;;) pause(); }
