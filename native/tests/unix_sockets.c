// Runs in the process that is frozen. Tests Unix sockets. In a copy, a connection to another process has ended, and a
// pair within the process keeps its data. If the process has a socket that a copy could not have, the freeze is
// refused.

#include "polled.h"
#include "refusing.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

// Starts a process that is not a child of this one. It keeps `theirs`, the other end of `ours`, open until `ours` is
// closed.
static void give_away(int theirs, int ours) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (fork() == 0) {
            char byte;
            close(ours);
            (void)!recv(theirs, &byte, 1, 0);
        }
        _exit(0);
    }
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    close(theirs);
}

CASE(unix_connection, "a Unix connection to another process has ended in a copy") {
    int ends[2];
    char byte;
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    give_away(ends[1], ends[0]);
    freeze_here();
    if (!copy)
        return;
    CHECK_EQUAL(polled(ends[0]) & (POLLIN | POLLHUP), POLLIN | POLLHUP);
    CHECK_EQUAL(read(ends[0], &byte, 1), 0);
    CHECK_EQUAL(send(ends[0], "x", 1, MSG_NOSIGNAL), -1);
    CHECK_EQUAL(errno, EPIPE);
}

static void log_to(int fd, const char *path, const char *text) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path);
    CHECK_EQUAL(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    CHECK_EQUAL(send(fd, text, strlen(text), 0), strlen(text));
}

CASE(unix_datagrams, "a Unix datagram socket is connected to its path again, as to /dev/log") {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "log"};
    int server = socket(AF_UNIX, SOCK_DGRAM, 0), client = socket(AF_UNIX, SOCK_DGRAM, 0);
    char text[16] = "";
    CHECK_EQUAL(bind(server, (struct sockaddr *)&address, sizeof address), 0);
    log_to(client, "log", "before");
    CHECK_EQUAL(recv(server, text, sizeof text, 0), 6);
    int ready[2], status; // the server continues in another process, which records what it receives
    CHECK_EQUAL(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        if (fork() == 0) {
            setsid(); // the runner kills the whole process group of the process that was frozen
            outlive();
            CHECK_EQUAL(write(ready[1], "", 1), 1);
            for (ssize_t got; (got = recv(server, text, sizeof text - 1, 0)) > 0;) {
                int out = open("received", O_WRONLY | O_CREAT | O_APPEND, 0600);
                (void)!write(out, text, (size_t)got);
                close(out);
            }
        }
        _exit(0);
    }
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(read(ready[0], text, 1), 1);
    close(server);
    close(ready[0]);
    close(ready[1]);
    freeze_here();
    CHECK_EQUAL(send(client, "after", 5, 0), 5);
    WAIT_UNTIL(access("received", F_OK) == 0);
}

CASE(bound_unix_socket, "a Unix socket with a name in the file system is refused") {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "mine"};
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    CHECK_EQUAL(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    begin();
    expect_refusal("a Unix socket has a name", "first invocation");
    close(fd);
    freeze_after_all();
}

CASE(pair_with_data, "each end of a socket pair keeps its unread data") {
    int ends[2];
    char text[16] = "";
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    CHECK_EQUAL(write(ends[0], "for ", 4), 4);
    CHECK_EQUAL(write(ends[0], "one", 3), 3);
    CHECK_EQUAL(write(ends[1], "for zero", 8), 8);
    freeze_here();
    CHECK_EQUAL(read(ends[1], text, sizeof text), 7);
    CHECK(strcmp(text, "for one") == 0);
    CHECK_EQUAL(read(ends[0], text, sizeof text), 8);
    CHECK_EQUAL(memcmp(text, "for zero", 8), 0);
    CHECK_EQUAL(polled(ends[0]) & POLLIN, 0);
}

CASE(half_closed_pair, "a socket pair that is shut down in one direction is refused") {
    int ends[2];
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    CHECK_EQUAL(shutdown(ends[0], SHUT_WR), 0);
    begin();
    expect_refusal("shut down in one direction", "before the freeze");
    close(ends[0]);
    close(ends[1]);
    freeze_after_all();
}

CASE(pair_with_descriptors, "a socket pair with descriptors that were sent but not received is refused") {
    int ends[2];
    char byte = 'x', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &ends[0], sizeof(int));
    CHECK_EQUAL(sendmsg(ends[0], &message, 0), 1);
    begin();
    expect_refusal("descriptors that were sent", "before the freeze");
    close(ends[0]);
    close(ends[1]);
    freeze_after_all();
}

CASE(pair_with_messages, "a pair of datagram sockets with unread messages is refused") {
    int ends[2];
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), 0);
    CHECK_EQUAL(send(ends[0], "x", 1, 0), 1);
    begin();
    expect_refusal("messages", "before the freeze");
    close(ends[0]);
    close(ends[1]);
    freeze_after_all();
}
