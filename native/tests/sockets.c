// Runs in the process that is frozen. Tests sockets. In a copy, connections have ended in a way that clients notice. An
// unconnected socket is a new socket with the same options. A listening socket gets another port.

#include "polled.h"
#include "refusing.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>

static struct sockaddr_in loopback(int port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
}

static int port_of(int fd) {
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;
    CHECK_EQUAL(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    return ntohs(address.sin_port);
}

static int option(int fd, int level, int name) {
    int value = -1;
    socklen_t bytes = sizeof value;
    CHECK_EQUAL(getsockopt(fd, level, name, &value, &bytes), 0);
    return value;
}

static void set(int fd, int level, int name, int value) {
    CHECK_EQUAL(setsockopt(fd, level, name, &value, sizeof value), 0);
}

static int bound(int type, int port) {
    struct sockaddr_in address = loopback(port);
    int fd = socket(AF_INET, type, 0);
    CHECK(fd >= 0);
    CHECK_EQUAL(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static int listening(void) {
    int fd = bound(SOCK_STREAM, 0);
    CHECK_EQUAL(listen(fd, 7), 0);
    return fd;
}

static int connect_to(int port) {
    struct sockaddr_in address = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    CHECK_EQUAL(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

// Makes both ends of a TCP connection; the listening socket is closed.
static void connection(int ends[2]) {
    int listener = listening();
    ends[0] = connect_to(port_of(listener));
    ends[1] = accept(listener, NULL, NULL);
    CHECK(ends[1] >= 0);
    close(listener);
}

// Checks that `fd` behaves like a connection that its server has closed: in poll, select and epoll, reads and writes.
static void check_ended(int fd) {
    char byte;
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    struct timeval now = {0};
    CHECK_EQUAL(select(fd + 1, &readable, NULL, NULL, &now), 1);
    CHECK_EQUAL(polled(fd) & (POLLIN | POLLHUP | POLLRDHUP), POLLIN | POLLHUP | POLLRDHUP);
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);
    CHECK_EQUAL(epoll_wait(epoll, &event, 1, 0), 1);
    close(epoll);
    CHECK_EQUAL(read(fd, &byte, 1), 0);
    CHECK_EQUAL(recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT), 0);
    CHECK_EQUAL(send(fd, "x", 1, MSG_NOSIGNAL), -1);
    CHECK_EQUAL(errno, EPIPE);
    CHECK_EQUAL(read(fd, &byte, 1), 0);
}

CASE(ended_connection,
     "a TCP connection has ended in a copy and keeps its options; the original keeps the connection") {
    int ends[2], twin;
    char byte = 0;
    connection(ends);
    set(ends[0], IPPROTO_TCP, TCP_NODELAY, 1);
    set(ends[0], SOL_SOCKET, SO_KEEPALIVE, 1);
    CHECK_EQUAL(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    CHECK_EQUAL(fcntl(ends[0], F_SETFD, FD_CLOEXEC), 0);
    CHECK_EQUAL(write(ends[1], "answer of another", 17), 17);
    twin = dup(ends[0]);
    freeze_here();
    CHECK_EQUAL(option(ends[0], IPPROTO_TCP, TCP_NODELAY), 1);
    CHECK_EQUAL(option(ends[0], SOL_SOCKET, SO_KEEPALIVE), 1);
    CHECK_EQUAL(option(ends[0], SOL_SOCKET, SO_TYPE), SOCK_STREAM);
    CHECK_EQUAL(option(ends[0], SOL_SOCKET, SO_DOMAIN), AF_INET);
    CHECK_EQUAL(fcntl(ends[0], F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    CHECK_EQUAL(fcntl(ends[0], F_GETFD), FD_CLOEXEC);
    if (copy) {
        check_ended(ends[0]);
        check_ended(twin);
        check_ended(ends[1]);
    } else if (!runs_as("dry")) {
        CHECK_EQUAL(report.ended, 2);
        CHECK(read(ends[0], &byte, 1) == 1 && byte == 'a');
    }
}

CASE(connecting_socket, "a connection that is being made has ended in a copy") {
    // accept is never called, so the queue of the listening socket becomes full, and the last connection stays
    // incomplete.
    int listener = bound(SOCK_STREAM, 0), waiting = -1;
    struct sockaddr_in address = loopback(port_of(listener));
    CHECK_EQUAL(listen(listener, 0), 0);
    for (int i = 0; i < 8; i++) {
        waiting = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        CHECK(connect(waiting, (struct sockaddr *)&address, sizeof address) == 0 || errno == EINPROGRESS);
    }
    WAIT_UNTIL(polled(waiting) == 0);
    close(listener);
    freeze_here();
    if (copy)
        check_ended(waiting);
}

CASE(ended_before, "a connection that had ended before the freeze is not mistaken for a new socket") {
    int ends[2];
    struct linger at_once = {.l_onoff = 1};
    connection(ends);
    CHECK_EQUAL(setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    close(ends[1]);
    WAIT_UNTIL(polled(ends[0]) & POLLHUP);
    freeze_here();
    if (copy)
        check_ended(ends[0]);
}

static void read_one(struct worker *worker) {
    char byte;
    ssize_t got;
    while ((got = read((int)worker->index, &byte, 1)) < 0 && errno == EINTR)
        ;
    worker->rounds = got == 0 ? 1 : -1;
}

CASE(reader, "a thread that waits to read from a connection wakes, and its read returns 0") {
    int ends[2];
    connection(ends);
    struct worker worker = {.index = ends[0]};
    start_blocked_worker(&worker, read_one, SYS_read);
    freeze_here();
    if (!copy)
        close(ends[1]);
    join_worker(&worker);
    CHECK_EQUAL(worker.rounds, 1);
}

static void wait_by_epoll(struct worker *worker) {
    struct epoll_event event;
    int got;
    while ((got = epoll_wait((int)worker->index, &event, 1, -1)) < 0 && errno == EINTR)
        ;
    worker->rounds = got == 1 ? (int)event.data.u32 : -1;
}

CASE(epoll_waiter,
     "a thread in epoll_wait wakes if its connection has ended, and keeps waiting if its socket is a new one") {
    int ends[2], epoll = epoll_create1(0), other = epoll_create1(0), fresh = bound(SOCK_DGRAM, 0);
    connection(ends);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 42};
    CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event), 0);
    CHECK_EQUAL(epoll_ctl(other, EPOLL_CTL_ADD, fresh, &event), 0);
    struct worker worker = {.index = epoll}, patient = {.index = other};
    start_blocked_worker(&worker, wait_by_epoll, SYS_epoll_wait);
    start_blocked_worker(&patient, wait_by_epoll, SYS_epoll_wait);
    freeze_here();
    if (!copy)
        close(ends[1]);
    join_worker(&worker);
    CHECK_EQUAL(worker.rounds, 42);
    CHECK_EQUAL(patient.rounds, 0);
    struct sockaddr_in address = loopback(port_of(fresh));
    CHECK_EQUAL(sendto(fresh, "x", 1, 0, (struct sockaddr *)&address, sizeof address), 1);
    join_worker(&patient);
    CHECK_EQUAL(patient.rounds, 42);
}

CASE(datagram_socket, "a datagram socket is new, bound to another port and connected to the same address") {
    int server = bound(SOCK_DGRAM, 0), client = socket(AF_INET, SOCK_DGRAM, 0), plain = socket(AF_INET6, SOCK_DGRAM, 0);
    struct sockaddr_in to = loopback(9), from;
    socklen_t bytes = sizeof from;
    char text[8];
    set(client, SOL_SOCKET, SO_BROADCAST, 1);
    set(client, SOL_SOCKET, SO_RCVBUF, 100000);
    set(client, IPPROTO_IP, IP_TOS, 16);
    int room = option(client, SOL_SOCKET, SO_RCVBUF);
    CHECK_EQUAL(connect(client, (struct sockaddr *)&to, sizeof to), 0);
    freeze_here();
    CHECK_EQUAL(option(client, SOL_SOCKET, SO_BROADCAST), 1);
    CHECK_EQUAL(option(client, SOL_SOCKET, SO_RCVBUF), room);
    CHECK_EQUAL(option(client, IPPROTO_IP, IP_TOS), 16);
    CHECK_EQUAL(getpeername(client, (struct sockaddr *)&from, &bytes), 0);
    CHECK_EQUAL(ntohs(from.sin_port), 9);
    CHECK_EQUAL(option(plain, SOL_SOCKET, SO_DOMAIN), AF_INET6);
    to = loopback(port_of(server));
    CHECK_EQUAL(connect(client, (struct sockaddr *)&to, sizeof to), 0);
    CHECK_EQUAL(send(client, "mine", 4, 0), 4);
    CHECK_EQUAL(recvfrom(server, text, sizeof text, 0, (struct sockaddr *)&from, &bytes), 4);
    CHECK_EQUAL(ntohs(from.sin_port), port_of(client));
}

// Makes a socket that is bound to a free port which the kernel would not choose itself.
static int low_port(int type) {
    for (int port = 20000; port < 30000; port++) {
        struct sockaddr_in address = loopback(port);
        int fd = socket(AF_INET, type, 0);
        if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0)
            return fd;
        close(fd);
    }
    not_here("no port is free");
}

// The case does not check which port a copy gets, because another copy can have the original's port.
CASE(bound_datagram, "a datagram socket that requested a port gets the same port if it is free, otherwise another") {
    int fd = low_port(SOCK_DGRAM), port = port_of(fd);
    freeze_here();
    CHECK(port_of(fd) != 0);
    CHECK_EQUAL(copy || port_of(fd) == port, 1);
}

CASE(fresh_stream, "a TCP socket that was never connected is new and can be connected") {
    int fd = socket(AF_INET, SOCK_STREAM, 0), chosen = bound(SOCK_STREAM, 0);
    struct timeval limit = {.tv_sec = 3, .tv_usec = 500000}, kept = {0};
    socklen_t bytes = sizeof kept;
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    CHECK_EQUAL(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    int32_t free_port[] = {chosen};
    any_port = free_port;
    any_port_count = 1;
    freeze_here();
    CHECK_EQUAL(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kept, &bytes), 0);
    CHECK_EQUAL(kept.tv_usec, 500000);
    CHECK_EQUAL(option(fd, IPPROTO_TCP, TCP_NODELAY), 1);
    CHECK_EQUAL(option(fd, SOL_SOCKET, SO_REUSEADDR), 1);
    int listener = listening();
    struct sockaddr_in address = loopback(port_of(listener));
    CHECK_EQUAL(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    CHECK_EQUAL(send(fd, "x", 1, 0), 1);
    CHECK(port_of(chosen) != 0);
}

static void accept_one(struct worker *worker) {
    int fd;
    while ((fd = accept((int)worker->index, NULL, NULL)) < 0 && errno == EINTR)
        ;
    worker->rounds = fd >= 0 ? 1 : -1;
}

CASE(listening_socket, "if the kernel chose the port, a listening socket gets another; its thread keeps waiting") {
    int fd = listening(), port = port_of(fd);
    struct worker worker = {.index = fd};
    start_blocked_worker(&worker, accept_one, SYS_accept);
    int32_t free_port[] = {fd};
    any_port = free_port;
    any_port_count = 1;
    freeze_here();
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    CHECK_EQUAL(option(fd, SOL_SOCKET, SO_ACCEPTCONN), 1);
    CHECK_EQUAL(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes), 0);
    CHECK_EQUAL(info.tcpi_sacked, 7);
    CHECK_EQUAL(copy ? port_of(fd) != 0 : port_of(fd) == port, 1);
    CHECK_EQUAL(worker.rounds, 0);
    connect_to(port_of(fd));
    join_worker(&worker);
    CHECK_EQUAL(worker.rounds, 1);
}

CASE(closed_listener,
     "with FREEZE_MUTE_LISTENERS nothing can connect to a listening socket; its thread keeps waiting") {
    int fd = low_port(SOCK_STREAM), port = port_of(fd);
    CHECK_EQUAL(listen(fd, 5), 0);
    struct worker worker = {.index = fd};
    start_blocked_worker(&worker, accept_one, SYS_accept);
    freeze_flags = FREEZE_MUTE_LISTENERS;
    freeze_here();
    if (copy) {
        CHECK(port_of(fd) != port);
        int client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        struct sockaddr_in address = loopback(port_of(fd));
        CHECK_EQUAL(connect(client, (struct sockaddr *)&address, sizeof address), -1);
        CHECK(errno == EINPROGRESS || errno == ECONNREFUSED);
        CHECK_EQUAL(polled(fd), 0);
        CHECK_EQUAL(worker.rounds, 0);
        return;
    }
    connect_to(port);
    join_worker(&worker);
}

CASE(refused_listener, "a listening socket is refused; the refusal names its port and the thread that waits for it") {
    int fd = low_port(SOCK_STREAM);
    char port[16], thread[48];
    CHECK_EQUAL(listen(fd, 5), 0);
    snprintf(port, sizeof port, "port %d", port_of(fd));
    struct worker worker = {.index = fd};
    start_blocked_worker(&worker, accept_one, SYS_accept);
    snprintf(thread, sizeof thread, "thread %d (", worker.tid);
    begin();
    expect_refusal("a listening socket", "first invocation");
    CHECK(runs_as("dry") || (strstr(report.text, port) && strstr(report.text, thread)));
    connect_to(port_of(fd));
    join_worker(&worker);
    close(fd);
    freeze_after_all();
}

CASE(poll_listener, "the refusal names one of the threads that wait for a listening socket by poll and epoll") {
    int fd = low_port(SOCK_STREAM), epoll = epoll_create1(0);
    char thread[48];
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 1};
    CHECK_EQUAL(listen(fd, 5), 0);
    CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);
    struct worker worker = {.index = epoll};
    start_blocked_worker(&worker, wait_by_epoll, SYS_epoll_wait);
    snprintf(thread, sizeof thread, "thread %d (", worker.tid);
    begin();
    expect_refusal(runs_as("dry") ? "" : thread, "first invocation");
    connect_to(port_of(fd));
    join_worker(&worker);
    close(fd);
    freeze_after_all();
}

CASE(refused_connection, "with FREEZE_REFUSE_CONNECTED a connection is refused") {
    int ends[2];
    connection(ends);
    begin();
    freeze_flags = FREEZE_REFUSE_CONNECTED;
    expect_refusal("connected socket", "before the freeze");
    close(ends[0]);
    close(ends[1]);
    freeze_after_all();
}

CASE(own_server, "a socket that is connected to a server in the same process, which gets another port, is refused") {
    int listener = listening(), client = connect_to(port_of(listener)), server = bound(SOCK_DGRAM, 0);
    int sender = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in address = loopback(port_of(server));
    int32_t free_port[] = {listener};
    any_port = free_port;
    any_port_count = 1;
    begin();
    expect_refusal("a port of this process", "first invocation");
    close(client);
    CHECK_EQUAL(connect(sender, (struct sockaddr *)&address, sizeof address), 0);
    expect_refusal("a port of this process", "first invocation");
    close(sender);
    freeze_after_all();
}

CASE(netlink_socket, "a netlink socket is refused") {
    int fd = socket(AF_NETLINK, SOCK_RAW, 0);
    CHECK(fd >= 0);
    begin();
    expect_refusal("a socket is of a kind", "first invocation");
    close(fd);
    freeze_after_all();
}
