// Runs in the process that is frozen. A library that tls.c loads by dlopen; it has a thread-local variable.

static __thread long counted = 500;
static const char *text = "not initialised";

__attribute__((constructor)) static void initialise(void) {
    text = "initialised by a constructor";
}

long count_in_thread(long by) {
    return counted += by;
}

const char *plugin_text(void) {
    return text;
}
