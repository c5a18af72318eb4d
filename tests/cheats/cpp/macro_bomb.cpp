// H47: a macro that doubles itself thirty times, until the compiler has no memory left. Caught: limits of the compiler's box.
#define A0(x) x, x, x, x
#define A1(x) A0(x), A0(x), A0(x), A0(x)
#define A2(x) A1(x), A1(x), A1(x), A1(x)
#define A3(x) A2(x), A2(x), A2(x), A2(x)
#define A4(x) A3(x), A3(x), A3(x), A3(x)
#define A5(x) A4(x), A4(x), A4(x), A4(x)
#define A6(x) A5(x), A5(x), A5(x), A5(x)
#define A7(x) A6(x), A6(x), A6(x), A6(x)
#define A8(x) A7(x), A7(x), A7(x), A7(x)
#define A9(x) A8(x), A8(x), A8(x), A8(x)
#define AA(x) A9(x), A9(x), A9(x), A9(x)
#define AB(x) AA(x), AA(x), AA(x), AA(x)
#define AC(x) AB(x), AB(x), AB(x), AB(x)
#define AD(x) AC(x), AC(x), AC(x), AC(x)
#define AE(x) AD(x), AD(x), AD(x), AD(x)
int numbers[] = {AE(1)};
//@minimal abi
