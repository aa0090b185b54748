// Runs in the process that is frozen. A library that stacks.c loads by dlopen; linked so that it asks for an executable
// stack, as old builds of torch and code with nested functions do.

int asks(void) {
    return 1;
}
