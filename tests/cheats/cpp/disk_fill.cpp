// H48: writes one file until the disk is full. Caught: the limit on the size of a file, and the wrong output if that holds quietly.
#define STEP \
    int fd = open("/box/huge", O_CREAT | O_WRONLY, 0600); \
    static char block[1 << 20]; \
    while (write(fd, block, sizeof block) > 0) {} \
    abort()
//@minimal abi
