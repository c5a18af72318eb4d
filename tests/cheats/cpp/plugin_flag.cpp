// H47: harmless by itself; comes with a flag that loads a plugin into the compiler. Caught: flags have an allowlist.
//@minimal abi
