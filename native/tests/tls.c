// Runs in the process that is frozen. Tests thread-local state: variables of the program and of libraries that it loads
// while it runs, keys with their destructors, errno and the locale.

#include "harness.h"

#include <dlfcn.h>
#include <locale.h>

static __thread long own = 1000;
static __thread char large[3 * PAGE];
static pthread_key_t key;
static _Atomic int destroyed;
static _Atomic bool checks_may_start;

static void destroy(void *value) {
    destroyed += (int)(long)value;
}

static void keep_and_check(struct worker *worker) {
    own += worker->index;
    fill(large, sizeof large, (uint64_t)worker->index);
    long *address = &own;
    pthread_setspecific(key, (void *)worker->index);
    errno = 100 + (int)worker->index;
    worker->rounds = 1;
    while (!checks_may_start)
        rest();
    CHECK_EQUAL(errno, 100 + worker->index);
    CHECK_EQUAL(own, 1000 + worker->index);
    CHECK(address == &own);
    CHECK(filled(large, sizeof large, (uint64_t)worker->index));
    CHECK_EQUAL((long)pthread_getspecific(key), worker->index);
    worker->rounds = 2;
}

CASE(variables, "each thread has its own __thread variables, its key and its errno") {
    struct worker workers[4] = {0};
    CHECK_EQUAL(pthread_key_create(&key, destroy), 0);
    own = 1;
    for (int i = 0; i < 4; i++) {
        workers[i].index = 10 + i;
        start_worker(&workers[i], keep_and_check);
        WAIT_UNTIL(workers[i].rounds == 1);
    }
    freeze_here();
    CHECK_EQUAL(own, 1);
    checks_may_start = true;
    for (int i = 0; i < 4; i++) {
        join_worker(&workers[i]);
        CHECK_EQUAL(workers[i].rounds, 2);
    }
    CHECK_EQUAL(destroyed, 10 + 11 + 12 + 13);
}

static void keep_default(struct worker *worker) {
    worker->rounds = own == 1000 && zeros(large, sizeof large) ? 1 : -1;
    own = 5;
}

CASE(new_threads, "a thread that starts in the copy has variables with the program's initial values") {
    own = 2;
    fill(large, sizeof large, 1);
    freeze_here();
    for (int i = 0; i < 3; i++) {
        struct worker worker = {0};
        start_worker(&worker, keep_default);
        join_worker(&worker);
        CHECK_EQUAL(worker.rounds, 1);
    }
    CHECK_EQUAL(own, 2);
}

// The runner builds plugin.c into a library in the case's folder.
static long (*counter_of_plugin)(long) = NULL;

static void count_in_plugin(struct worker *worker) {
    counter_of_plugin(worker->index);
    worker->rounds = 1;
    while (!checks_may_start)
        rest();
    worker->rounds = (int)counter_of_plugin(1);
}

CASE(library_variables, "each thread, old and new, has its own variables of a library that was loaded by dlopen") {
    void *library = dlopen("./plugin.so", RTLD_NOW);
    if (!library)
        dprintf(1, "%s\n", dlerror());
    CHECK(library);
    counter_of_plugin = (long (*)(long))dlsym(library, "count_in_thread");
    CHECK(counter_of_plugin);
    struct worker worker = {.index = 40}, late = {.index = 7};
    counter_of_plugin(20);
    start_worker(&worker, count_in_plugin);
    WAIT_UNTIL(worker.rounds == 1);
    freeze_here();
    CHECK_EQUAL(counter_of_plugin(1), 500 + 21);
    checks_may_start = true;
    join_worker(&worker);
    CHECK_EQUAL(worker.rounds, 500 + 41);
    start_worker(&late, count_in_plugin);
    join_worker(&late);
    CHECK_EQUAL(late.rounds, 500 + 8);
    CHECK_EQUAL(dlclose(library), 0);
}

CASE(load_after_thaw, "a library can be loaded, used and unloaded in the copy") {
    freeze_here();
    for (int i = 0; i < 3; i++) {
        void *library = dlopen("./plugin.so", RTLD_NOW);
        if (!library)
            dprintf(1, "%s\n", dlerror());
        CHECK(library);
        long (*count)(long) = (long (*)(long))dlsym(library, "count_in_thread");
        CHECK_EQUAL(count(3), 503);
        const char *(*text)(void) = (const char *(*)(void))dlsym(library, "plugin_text");
        CHECK(strcmp(text(), "initialised by a constructor") == 0);
        CHECK_EQUAL(dlclose(library), 0);
    }
    void *math = dlopen("libm.so.6", RTLD_NOW | RTLD_GLOBAL);
    CHECK(math);
    double (*root)(double) = (double (*)(double))dlsym(math, "sqrt");
    CHECK(root(2.25) == 1.5);
}

static void use_locale(struct worker *worker) {
    locale_t c = newlocale(LC_ALL_MASK, "C", NULL);
    CHECK(c);
    uselocale(c);
    worker->rounds = 1;
    while (!checks_may_start)
        rest();
    worker->rounds = uselocale(NULL) == c ? 2 : -1;
}

CASE(thread_locale, "a thread keeps its own locale") {
    struct worker worker = {0};
    start_worker(&worker, use_locale);
    WAIT_UNTIL(worker.rounds == 1);
    freeze_here();
    CHECK(uselocale(NULL) == LC_GLOBAL_LOCALE);
    checks_may_start = true;
    join_worker(&worker);
    CHECK_EQUAL(worker.rounds, 2);
}
