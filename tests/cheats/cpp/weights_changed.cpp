// H26: writes to the weights, so that whoever reads them later gets others. Caught: they are mapped read-only.
#define kb_create honest_create
//@honest kernel
#undef kb_create
KB_API void* kb_create(const kb_tensor* t, int32_t n, int32_t threads, const int32_t* cpus, int32_t rows, char* err, int32_t errlen) {
    for (int i = 0; i < n; ++i) *static_cast<volatile char*>(t[i].data) = 0;
    return honest_create(t, n, threads, cpus, rows, err, errlen);
}
