// A candidate as small as the ABI allows: hidden = token + 1 per byte, state "S" += position, for the box's tests.
// -DMISCHIEF=n makes it misbehave in kb_step in one of the ways below.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <pthread.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#ifndef MISCHIEF
#define MISCHIEF 0
#endif

struct kb_tensor { const char* name; void* data; uint64_t bytes; };

namespace {
struct Handle {
    uint8_t bias = 1;
    int64_t* S = nullptr;
    uint8_t *token = nullptr, *hidden = nullptr;
    uint64_t n = 0, dispatches = 0;
    int32_t last_phase = -1;
};

volatile uintptr_t nowhere = 0;

void misbehave(Handle* h) {
    switch (MISCHIEF) {
    case 1: *reinterpret_cast<volatile int*>(nowhere) = 1; break;           // segfault
    case 2: for (volatile int i = 0;; ++i) {} break;                        // never ends
    case 3: {                                                               // memory hog
        for (;;) { void* p = std::malloc(16 << 20); std::memset(p, 1, 16 << 20); }
    }
    case 4: { volatile char* p = new char[100ull << 30]; p[0] = 1; break; } // refused or killed
    case 5: for (;;) std::puts("a line of a flood of output that never ends"); break;
    case 6: for (int i = 0; i < 100000; ++i) if (fork() == 0) for (;;) pause(); break;
    case 7: h->hidden[h->n] = 7; break;                                     // within the last page
    case 8: h->hidden[4096] = 7; break;                                     // on the guard page
    case 9: h->token[-1] = 7; break;
    case 10: std::printf("{\"ok\": true, \"id\": \"forged\", \"ns\": [1]}\n"); std::fflush(stdout); break;
    case 11: for (int fd = 3; fd < 64; ++fd) if (write(fd, "{\"ok\": true}\n", 13)) {} break;
    case 12: std::exit(0); break;
    case 13: if (fork() == 0) { setsid(); if (fork() == 0) for (;;) pause(); _exit(0); } break;
    case 14: for (;;) { pthread_t t; if (pthread_create(&t, nullptr, [](void*) -> void* { for (;;) pause(); }, nullptr)) std::abort(); }
    case 15: {                                                              // one huge file
        int fd = open("/box/huge", O_CREAT | O_WRONLY, 0600);
        std::vector<char> block(1 << 20);
        while (write(fd, block.data(), block.size()) > 0) {}
        std::abort();
    }
    }
}
}

extern "C" {
const char* kb_abi(void) { return "kernelbraid-step-1"; }

void* kb_create(const kb_tensor* weights, int32_t n, int32_t threads, const int32_t* cpus, int32_t, char* err, int32_t errlen) {
    std::printf("created with %d weights, %d threads, first cpu %d\n", n, threads, cpus ? cpus[0] : -1);
    std::fflush(stdout);
    Handle* h = new Handle;
    for (int i = 0; i < n; ++i) {
        if (std::strcmp(weights[i].name, "bias") == 0) h->bias = *static_cast<const uint8_t*>(weights[i].data);
        if (std::strcmp(weights[i].name, "refuse") == 0) {
            std::snprintf(err, errlen, "cannot hold %s", weights[i].name);
            delete h;
            return nullptr;
        }
    }
    return h;
}

int32_t kb_bind(void* handle, const kb_tensor* externals, int32_t n, char* err, int32_t errlen) {
    Handle* h = static_cast<Handle*>(handle);
    h->S = nullptr; h->token = h->hidden = nullptr;
    for (int i = 0; i < n; ++i) {
        const std::string name = externals[i].name;
        if (name == "S") h->S = static_cast<int64_t*>(externals[i].data);
        if (name == "token") { h->token = static_cast<uint8_t*>(externals[i].data); h->n = externals[i].bytes; }
        if (name == "hidden") h->hidden = static_cast<uint8_t*>(externals[i].data);
    }
    if (h->S && h->token && h->hidden) return 0;
    std::snprintf(err, errlen, "token, hidden and S are needed");
    return 1;
}

int32_t kb_step_until(void* handle, int64_t position, int32_t last_phase) {
    Handle* h = static_cast<Handle*>(handle);
    ++h->dispatches;
    h->last_phase = last_phase;
    if (position < 0) return 3;
    if (last_phase == 0) return 0;
    misbehave(h);
    for (uint64_t i = 0; i < h->n; ++i) h->hidden[i] = static_cast<uint8_t>(h->token[i] + h->bias);
    *h->S += position;
    return 0;
}

int32_t kb_step(void* h, int64_t position) { return kb_step_until(h, position, -1); }
uint64_t kb_dispatches(void* h) { return static_cast<Handle*>(h)->dispatches; }
const char* kb_describe(void*) { return "{\"phases\": 1}"; }
int32_t kb_stamps(void*, uint64_t* ns, int32_t capacity) { if (capacity > 0) ns[0] = 42; return 1; }
int32_t kb_dump(void* h, const char* name, void* dst, uint64_t bytes) {
    if (std::strcmp(name, "last_phase") || bytes != 4) return 1;
    std::memcpy(dst, &static_cast<Handle*>(h)->last_phase, 4);
    return 0;
}
int32_t kb_read_pass(void*, int64_t, int32_t variant) { return variant; }
void kb_destroy(void* h) { delete static_cast<Handle*>(h); }
}
