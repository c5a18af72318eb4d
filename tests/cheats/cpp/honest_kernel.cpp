// Honest twin: the kernel as the merger made it. What every cheat that wraps it is compared with.
//@honest kernel
