// Runs in the process that is frozen. Binds freeze to versions of functions that glibc has had since 2.2.5 and 2.3.3,
// so that one library serves every glibc that Python interpreters run on.
//
// glibc 2.34 moved these functions from libdl.so.2 to libc.so.6 and gave them new versions. It keeps the old versions,
// with the same code. With an older glibc, a process that loads this library has loaded libdl.so.2, because it calls
// dlopen, and the loader finds the functions there. The library does not name libdl.so.2: an image may lack that file.
//
// Source: glibc, NEWS for 2.34, and check_match in elf/dl-lookup.c; Debian, libc6.symbols.

#ifndef THAWD_OLD_GLIBC_H
#define THAWD_OLD_GLIBC_H

#ifdef __x86_64__
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver dlclose, dlclose@GLIBC_2.2.5");
__asm__(".symver dladdr1, dladdr1@GLIBC_2.3.3");
#endif

#endif
