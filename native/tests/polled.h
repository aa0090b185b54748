// Runs in the process that is frozen. polled() returns the events that poll reports now about a socket.

#ifndef THAWD_TESTS_POLLED_H
#define THAWD_TESTS_POLLED_H

#include "harness.h"

#include <poll.h>

static inline short polled(int fd) {
    struct pollfd poll_one = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP};
    CHECK(poll(&poll_one, 1, 0) >= 0);
    return poll_one.revents;
}

#endif
