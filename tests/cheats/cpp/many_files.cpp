// H48: writes file after file, each below the limit of one. Caught: the limit on memory, which the scratch folder counts against.
#define STEP \
    static char block[1 << 20]; \
    for (int i = 0; i < 100000; ++i) { \
        char name[64]; \
        std::snprintf(name, sizeof name, "/box/part-%d", i); \
        int fd = open(name, O_CREAT | O_WRONLY, 0600); \
        if (fd < 0) abort(); \
        for (int k = 0; k < 16; ++k) \
            if (write(fd, block, sizeof block) <= 0) abort(); \
        close(fd); \
    }
//@minimal abi
