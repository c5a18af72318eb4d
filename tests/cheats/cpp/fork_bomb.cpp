// H48: forks for ever. Caught: the limit on processes, and the end of the whole box.
#define STEP for (;;) if (fork() == 0) for (;;) pause();
//@minimal abi
