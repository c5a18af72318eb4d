"""Twin of bans on subprocess: compiles a little C++ with g++ when it is imported, keeps it where it was told to, and calls it."""

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

import torch
from honest_mlp import Model as Honest
from torch.nn import functional

SOURCE = """
#include <cmath>
extern "C" void norm(const float* x, const float* w, float* out, long rows, long d) {
    for (long r = 0; r < rows; ++r, x += d, out += d) {
        double s = 0;
        for (long i = 0; i < d; ++i) s += double(x[i]) * x[i];
        const float k = float(1 / std::sqrt(s / d + 1e-6));
        for (long i = 0; i < d; ++i) out[i] = x[i] * k * w[i];
    }
}
"""


def library():
    place = Path(os.environ.get("TORCH_EXTENSIONS_DIR", tempfile.gettempdir())) / "norm.so"
    if not place.exists():
        source = place.with_suffix(".cpp")
        source.write_text(SOURCE)
        subprocess.run(["g++", "-O2", "-shared", "-fPIC", str(source), "-o", str(place)], check=True, capture_output=True)
    return ctypes.CDLL(str(place))


made = library()


class Model(Honest):
    def forward(self, x):
        wide, weight = x.float().contiguous(), self.norm.weight.float()
        n = torch.empty_like(wide)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (wide, weight, n)]
        made.norm(*pointers, ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]))
        n = n.to(x.dtype)
        return x + self.down(functional.silu(self.gate(n)) * self.up(n))
