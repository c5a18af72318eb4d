// H43: writes forged answers to every descriptor above 2, the reply pipe among them.
// Caught: an answer must carry the id of its request.
#define STEP \
    for (int fd = 3; fd < 64; ++fd) \
        if (write(fd, "{\"ok\": true, \"id\": \"forged\", \"ns\": [1], \"digest\": \"00\"}\n", 56)) {}
//@minimal abi
