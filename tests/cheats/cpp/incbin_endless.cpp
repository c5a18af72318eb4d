// H47: has the assembler paste in a device that never ends. Caught: limits on memory, file size and time of the compiler.
asm(".section .rodata\nstolen: .incbin \"/dev/zero\"\n.previous\n");
//@minimal abi
