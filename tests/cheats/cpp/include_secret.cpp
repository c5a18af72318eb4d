// H47: includes files of the machine, so that their words stand in the compiler's log or in the library.
// Caught: the compiler runs in a box that holds the system and this source only.
#include "/etc/passwd"
#include "/root/.bashrc"
//@minimal abi
