// Runs in thaw's address space. Makes sockets again: pairs within the process, sockets whose connection has ended, new
// ones and listening ones. No thread of the copy runs yet.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "thaw.h"

// Called for each end of a socket pair; makes both ends when it is called for the one that comes first in the table.
void make_pair(struct thaw *t, const struct descriptor *first) {
    const struct descriptor *all = SECTION(t, struct descriptor, SECTION_DESCRIPTORS);
    int ends[2];
    if ((int32_t)first->index < first->number)
        return;
    long result = sys6(SYS_socketpair, AF_UNIX, (long)first->value, 0, (long)ends, 0, 0);
    if (SYS_FAILED(result))
        fail_descriptor(first, "a pair of sockets cannot be made for descriptor ", result);
    for (int i = 0; i < 2; i++)
        ends[i] = keep_aside(t, ends[i]);
    for (uint32_t i = 0; i < COUNT(t, SECTION_DESCRIPTORS); i++) {
        int second = all[i].number == (int32_t)first->index;
        if (all[i].kind != DESCRIPTOR_SOCKETPAIR || (!second && &all[i] != first))
            continue;
        fill_channel(t, &all[i], ends[!second]);
        sys_fcntl(ends[second], F_SETFL, all[i].open_flags & O_NONBLOCK);
        put_in_place(&all[i], ends[second]);
    }
    sys_close(ends[0]);
    sys_close(ends[1]);
}

static void set_options(struct thaw *t, const struct descriptor *descriptor, const struct socket_state *state, int fd) {
    const struct socket_option *options = SECTION(t, struct socket_option, SECTION_OPTIONS) + state->first_option;
    for (uint32_t i = 0; i < state->option_count; i++) {
        long result =
            sys6(SYS_setsockopt, fd, options[i].level, options[i].name, (long)options[i].value, options[i].bytes, 0);
        if (SYS_FAILED(result) && state->revival != SOCKET_ENDED)
            fail_descriptor(descriptor, "an option of a socket cannot be set: descriptor ", result);
    }
}

// Binds to the local address; with `any_port` the kernel chooses the port.
static long bind_to(const struct socket_state *state, int fd, int any_port) {
    char address[SOCKET_ADDRESS_BYTES];
    uint32_t bytes = state->local_bytes;
    copy_bytes(address, state->local, bytes);
    if (any_port && state->family == AF_UNIX)
        bytes = sizeof(uint16_t); // Source: unix(7), "Autobind feature"
    else if (any_port)
        address[2] = address[3] = 0; // sin_port, sin6_port
    return sys3(SYS_bind, fd, (long)address, bytes);
}

// Binds a socket to its old address. If that port is in use, or the kernel had chosen it, the socket gets a free port.
static void bind_socket(const struct descriptor *descriptor, const struct socket_state *state, int fd) {
    if (!state->local_bytes)
        return;
    long result = state->any_port ? -EADDRINUSE : bind_to(state, fd, 0);
    if (result == -EADDRINUSE)
        result = bind_to(state, fd, 1);
    if (SYS_FAILED(result))
        fail_descriptor(descriptor, "a socket cannot be bound to its address: descriptor ", result);
}

static int make_ended_unix(const struct socket_state *state) {
    int ends[2];
    long result = sys6(SYS_socketpair, AF_UNIX, (long)(state->type | SOCK_CLOEXEC), 0, (long)ends, 0, 0);
    if (SYS_FAILED(result))
        return (int)result;
    sys_close(ends[1]);
    return ends[0];
}

// Makes a socket listen at a random loopback address 127.x.y.z and a port that the kernel chooses, so that nothing
// connects to it. Also attaches a filter that drops all connections; if that is not permitted, only the address
// protects the socket.
static long mute(const struct socket_state *state, int fd) {
    struct sock_filter nothing = {.code = BPF_RET | BPF_K, .k = 0};
    struct sock_fprog program = {.len = 1, .filter = &nothing};
    uint32_t drawn = 0;
    sys3(SYS_getrandom, (long)&drawn, sizeof drawn, 0);
    struct sockaddr_in six_less = {.sin_family = AF_INET, .sin_addr.s_addr = drawn << 8 | 127}; // 127 comes first
    struct sockaddr_in6 mapped = {.sin6_family = AF_INET6};
    mapped.sin6_addr.s6_addr[10] = mapped.sin6_addr.s6_addr[11] = 0xff; // ::ffff:127.x.y.z
    copy_bytes(&mapped.sin6_addr.s6_addr[12], &six_less.sin_addr, sizeof six_less.sin_addr);
    int six = state->family == AF_INET6, zero = 0;
    sys6(SYS_setsockopt, fd, SOL_SOCKET, SO_ATTACH_FILTER, (long)&program, sizeof program, 0);
    if (six)
        sys6(SYS_setsockopt, fd, IPPROTO_IPV6, IPV6_V6ONLY, (long)&zero, sizeof zero, 0);
    long result = sys3(SYS_bind, fd, six ? (long)&mapped : (long)&six_less, six ? sizeof mapped : sizeof six_less);
    return SYS_FAILED(result) ? result : sys3(SYS_listen, fd, state->backlog, 0);
}

static void listen_anew(const struct descriptor *descriptor, const struct socket_state *state, int fd) {
    long result;
    if (state->revival == SOCKET_MUTE)
        result = mute(state, fd);
    else {
        bind_socket(descriptor, state, fd);
        result = sys3(SYS_listen, fd, state->backlog, 0);
    }
    if (SYS_FAILED(result))
        fail_descriptor(descriptor, "a socket cannot listen: descriptor ", result);
}

int make_socket(struct thaw *t, const struct descriptor *descriptor) {
    const struct socket_state *state = SECTION(t, struct socket_state, SECTION_SOCKETS) + descriptor->index;
    int fd;
    if (state->revival == SOCKET_ENDED && state->family == AF_UNIX)
        fd = make_ended_unix(state);
    else
        fd = (int)sys3(SYS_socket, state->family, state->type | SOCK_CLOEXEC, state->protocol);
    if (fd < 0)
        fail_descriptor(descriptor, "a socket cannot be made for descriptor ", fd);
    set_options(t, descriptor, state, fd);
    // After the shutdown, read returns 0, write fails with EPIPE, and poll reports POLLIN and POLLHUP; nothing is ever
    // sent. The call fails with ENOTCONN, but shuts the socket down nevertheless. Source: net/ipv4/af_inet.c,
    // inet_shutdown.
    if (state->revival == SOCKET_ENDED)
        sys3(SYS_shutdown, fd, SHUT_RDWR, 0);
    else if (state->revival == SOCKET_NEW) {
        bind_socket(descriptor, state, fd);
        // connect sends nothing here. If the peer does not exist, a later send reports that, as in the original.
        if (state->peer_bytes)
            sys3(SYS_connect, fd, (long)state->peer, state->peer_bytes);
    } else
        listen_anew(descriptor, state, fd);
    sys_fcntl(fd, F_SETFL, descriptor->open_flags & (O_NONBLOCK | O_ASYNC));
    return fd;
}
