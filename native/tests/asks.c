// Runs in the process that is frozen. A library that stacks.c loads by dlopen. It is linked with a flag that requests
// an executable stack, as old builds of torch and code with nested functions are.

int asks(void) {
    return 1;
}
