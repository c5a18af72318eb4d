// H47: has the assembler paste in a file of the machine. Caught: the compiler's box does not hold it.
asm(".section .rodata\nstolen: .incbin \"/etc/shadow\"\n.previous\n");
//@minimal abi
