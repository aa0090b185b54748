// Runs in the process that is frozen. A library that stacks.c loads by dlopen. It is linked so that it requests an
// executable stack, as do old builds of torch and code with nested functions.

int asks(void) {
    return 1;
}
