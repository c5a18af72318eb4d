/* A driver without a device, for what no real one can be made to do: a wrong result, a device that is not there. It holds the
   preflight to the driver's calling convention, computes the kernel's formula on the CPU, and is told by FAKE_DRIVER what to do. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char *mode(void) { const char *m = getenv("FAKE_DRIVER"); return m ? m : ""; }
static int is(const char *m) { return strcmp(mode(), m) == 0; }
static int ready, loaded;

int cuInit(unsigned flags) {
  if (is("crash")) abort();
  if (is("no_device")) return 100;
  ready = flags == 0;
  return ready ? 0 : 1;
}
int cuGetErrorName(int status, const char **name) {
  *name = status == 100 ? "CUDA_ERROR_NO_DEVICE" : status == 221 ? "CUDA_ERROR_JIT_COMPILER_NOT_FOUND" : "CUDA_ERROR_UNKNOWN";
  return 0;
}
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return ready ? 0 : 3; }
int cuDeviceGet(int *device, int number) { *device = 40 + number; return 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) {
  for (int i = 0; i < 16; i++) uuid[i] = (unsigned char)(device == 41 ? i * 17 : 0);
  return 0;
}
int cuDeviceGetName(char *name, int room, int device) {
  if (room < 12 || device != 41) return 1;
  strcpy(name, "Fake device");
  return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (attribute != 38 || device != 41) return 1;
  *value = 50 << 20;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)0x1000; return device == 41 ? 0 : 101; }
int cuCtxSetCurrent(void *context) { return context == (void *)0x1000 ? 0 : 201; }
int cuModuleLoadData(void **module, const char *text) {
  if (is("no_jit")) return 221;
  loaded = strstr(text, ".version") != NULL && strstr(text, ".entry kb_preflight") != NULL;
  *module = (void *)0x2000;
  return loaded ? 0 : 218;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = (void *)0x3000;
  return module == (void *)0x2000 && strcmp(name, "kb_preflight") == 0 ? 0 : 500;
}
int cuMemAlloc_v2(uint64_t *address, size_t bytes) { *address = (uint64_t)(uintptr_t)malloc(bytes); return 0; }
int cuMemsetD32_v2(uint64_t address, unsigned value, size_t count) {
  for (size_t i = 0; i < count; i++) ((uint32_t *)(uintptr_t)address)[i] = value;
  return 0;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **arguments, void **extra) {
  if (function != (void *)0x3000 || gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || stream || extra) return 1;
  uint32_t *out = (uint32_t *)(uintptr_t)*(uint64_t *)arguments[0], seed = *(uint32_t *)arguments[1], count = *(uint32_t *)arguments[2];
  for (uint32_t i = 0; i < gx * bx && i < count; i++) out[i] = i * 40503u + seed;
  if (is("wrong")) out[200] ^= 1;
  if (is("idle")) memset(out, 0xff, count * 4);
  return 0;
}
int cuCtxSynchronize(void) { return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { memcpy(to, (void *)(uintptr_t)from, bytes); return 0; }
int cuMemFree_v2(uint64_t address) { free((void *)(uintptr_t)address); return 0; }
