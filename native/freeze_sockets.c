// Runs in the process that is frozen. Describes its sockets. In a copy, a pair of Unix sockets within the process is
// connected again and has the same unread data. Other connections have ended, so that no two copies share one.
// Unconnected sockets and UDP sockets are made anew, with the same addresses except for ports that the kernel had
// chosen. For a listening socket, the function's settings decide: it gets another port, or nothing can connect to it,
// or the freeze is refused.

#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>

#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>

#include "descriptors.h"
#include "sys.h"

// The most data that a new socket pair certainly accepts while no end reads: its buffer holds 208 KiB by default.
#define MAX_UNREAD_BYTES 65536

static const char listens[] =
    "a listening socket cannot be frozen, since copies cannot all listen on its port; open it on the first invocation, "
    "have the kernel choose the port (port 0), or set snapshot_listeners = \"close\": descriptor ";
static const char is_connected[] = "a connected socket must not be frozen (snapshot_connections = \"refuse\"). Close "
                                   "the connection before the freeze "
                                   "(in a before-snapshot hook), or open it on the first invocation: descriptor ";
static const char has_path[] =
    "a Unix socket has a name in the file system, which copies cannot share; close it before the freeze, or make it on "
    "the first invocation: descriptor ";
static const char is_unknown[] =
    "a socket is of a kind that the engine does not know; close it before the freeze, or make it on the first "
    "invocation: descriptor ";
static const char has_descriptors[] =
    "a socket pair holds descriptors that were sent; receive them before the freeze: descriptor ";
static const char is_untold[] = "the kernel does not report whether the other end of a Unix socket is in this process "
                                "(sock_diag); close it before the freeze, or allow netlink sockets: descriptor ";
static const char is_half_closed[] =
    "a socket pair is shut down in one direction; close it before the freeze: descriptor ";
static const char has_own_peer[] =
    "a socket is connected to a port of this process that the kernel chose; each copy gets another port. Close both "
    "sockets before the freeze, or open them on the first invocation: descriptor ";
static const char holds_too_much[] = "a socket pair holds too much data; read it before the freeze: descriptor ";

static int option_of(int fd, int option) {
    int value = 0;
    uint32_t bytes = sizeof value;
    sys6(SYS_getsockopt, fd, SOL_SOCKET, option, (long)&value, (long)&bytes, 0);
    return value;
}

#define UNKNOWN_PEER UINT32_MAX

// The inode of the other end of the AF_UNIX socket `inode`. 0: it has no other end. UNKNOWN_PEER: not reported.
// Source: sock_diag(7).
static uint32_t unix_peer(uint64_t inode) {
    struct {
        struct nlmsghdr header;
        struct unix_diag_req request;
    } question = {
        .header = {.nlmsg_len = sizeof question, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
        .request = {.sdiag_family = AF_UNIX,
                    .udiag_states = UINT32_MAX,
                    .udiag_ino = (uint32_t)inode,
                    .udiag_show = UDIAG_SHOW_PEER,
                    .udiag_cookie = {UINT32_MAX, UINT32_MAX}},
    };
    char reply[1024] __attribute__((aligned(8)));
    long fd = sys3(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (SYS_FAILED(fd))
        return UNKNOWN_PEER;
    long bytes = sys_write((int)fd, &question, sizeof question);
    if (!SYS_FAILED(bytes))
        bytes = sys_read((int)fd, reply, sizeof reply);
    sys_close((int)fd);
    const struct nlmsghdr *header = (const void *)reply;
    uint64_t at = sizeof *header + sizeof(struct unix_diag_msg);
    if (SYS_FAILED(bytes) || bytes < (long)at || header->nlmsg_type != SOCK_DIAG_BY_FAMILY)
        return UNKNOWN_PEER;
    while (at + sizeof(struct nlattr) <= (uint64_t)bytes) {
        const struct nlattr *attribute = (const void *)(reply + at);
        if (attribute->nla_len < sizeof *attribute)
            break;
        if (attribute->nla_type == UNIX_DIAG_PEER)
            return *(const uint32_t *)(const void *)(reply + at + sizeof *attribute);
        at += (attribute->nla_len + 3u) & ~3u;
    }
    return 0;
}

static short poll_now(int fd) {
    struct pollfd poll = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP};
    const struct timespec now = {0, 0};
    sys6(SYS_ppoll, (long)&poll, 1, (long)&now, 0, 8, 0);
    return poll.revents;
}

static int is_inet(const struct socket_state *state) {
    return state->family == AF_INET || state->family == AF_INET6;
}

static uint32_t port_of(const char *address) {
    return (uint32_t)(unsigned char)address[2] << 8 | (unsigned char)address[3]; // sin_port, sin6_port
}

static void take_address(long call, int fd, char *to, uint32_t *bytes) {
    *bytes = SOCKET_ADDRESS_BYTES;
    if (sys3(call, fd, (long)to, (long)bytes) < 0 || *bytes > SOCKET_ADDRESS_BYTES)
        *bytes = 0;
}

// The options that are restored. Options that can only be read or need privileges are left out. So are memberships of
// multicast groups, which cannot be read.
static const struct {
    int16_t family; // 0: any; AF_INET: the two internet families
    int16_t level, name;
    uint16_t bytes;
} known_options[] = {
    {0, SOL_SOCKET, SO_REUSEADDR, 4},
    {0, SOL_SOCKET, SO_BROADCAST, 4},
    {0, SOL_SOCKET, SO_KEEPALIVE, 4},
    {0, SOL_SOCKET, SO_OOBINLINE, 4},
    {0, SOL_SOCKET, SO_PRIORITY, 4},
    {0, SOL_SOCKET, SO_LINGER, 8},
    {0, SOL_SOCKET, SO_REUSEPORT, 4},
    {0, SOL_SOCKET, SO_RCVLOWAT, 4},
    {0, SOL_SOCKET, SO_RCVTIMEO, 16},
    {0, SOL_SOCKET, SO_SNDTIMEO, 16},
    {0, SOL_SOCKET, SO_SNDBUF, 4},
    {0, SOL_SOCKET, SO_RCVBUF, 4},
    {0, SOL_SOCKET, SO_TIMESTAMP, 4},
    {0, SOL_SOCKET, SO_TIMESTAMPNS, 4},
    {0, SOL_SOCKET, SO_BUSY_POLL, 4},
    {AF_UNIX, SOL_SOCKET, SO_PASSCRED, 4},
    {AF_INET, IPPROTO_IP, IP_TOS, 4},
    {AF_INET, IPPROTO_IP, IP_TTL, 4},
    {AF_INET, IPPROTO_IP, IP_FREEBIND, 4},
    {AF_INET, IPPROTO_IP, IP_RECVERR, 4},
    {AF_INET, IPPROTO_IP, IP_PKTINFO, 4},
    {AF_INET, IPPROTO_IP, IP_MTU_DISCOVER, 4},
    {AF_INET, IPPROTO_IP, IP_MULTICAST_TTL, 4},
    {AF_INET, IPPROTO_IP, IP_MULTICAST_LOOP, 4},
    {AF_INET, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 4},
    {AF_INET6, IPPROTO_IPV6, IPV6_V6ONLY, 4},
    {AF_INET6, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 4},
    {AF_INET6, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 4},
    {AF_INET6, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 4},
    {AF_INET6, IPPROTO_IPV6, IPV6_MTU_DISCOVER, 4},
    {AF_INET6, IPPROTO_IPV6, IPV6_RECVERR, 4},
    {AF_INET6, IPPROTO_IPV6, IPV6_RECVPKTINFO, 4},
    {AF_INET6, IPPROTO_IPV6, IPV6_TCLASS, 4},
    {AF_INET, IPPROTO_TCP, TCP_NODELAY, 4},
    {AF_INET, IPPROTO_TCP, TCP_KEEPIDLE, 4},
    {AF_INET, IPPROTO_TCP, TCP_KEEPINTVL, 4},
    {AF_INET, IPPROTO_TCP, TCP_KEEPCNT, 4},
    {AF_INET, IPPROTO_TCP, TCP_SYNCNT, 4},
    {AF_INET, IPPROTO_TCP, TCP_LINGER2, 4},
    {AF_INET, IPPROTO_TCP, TCP_DEFER_ACCEPT, 4},
    {AF_INET, IPPROTO_TCP, TCP_USER_TIMEOUT, 4},
    {AF_INET, IPPROTO_TCP, TCP_FASTOPEN, 4},
    {AF_INET, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 4},
    {AF_INET, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 4},
    {AF_INET, IPPROTO_TCP, TCP_CONGESTION, SOCKET_OPTION_BYTES},
};

static int option_applies(const struct socket_state *state, unsigned i) {
    int family = known_options[i].family;
    if (known_options[i].level == IPPROTO_TCP && state->type != SOCK_STREAM)
        return 0;
    return !family || (uint32_t)family == state->family || (family == AF_INET && is_inet(state));
}

static int same_bytes(const char *a, const char *b, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i++)
        if (a[i] != b[i])
            return 0;
    return 1;
}

// Only options that differ from those of a new socket of the same kind are restored.
static int describe_options(struct freezing *f, int fd, struct socket_state *state) {
    long fresh = sys3(SYS_socket, state->family, state->type | SOCK_CLOEXEC, state->protocol);
    if (SYS_FAILED(fresh))
        return fail(f, "descriptors", fresh, "a new socket, with which to compare socket options, cannot be made");
    struct table *options = &f->sections[SECTION_OPTIONS];
    state->first_option = options->count;
    int result = 0;
    for (unsigned i = 0; !result && i < sizeof known_options / sizeof *known_options; i++) {
        struct socket_option here = {.level = known_options[i].level, .name = known_options[i].name}, there = here;
        uint32_t bytes = known_options[i].bytes, other_bytes = bytes;
        if (!option_applies(state, i) ||
            sys6(SYS_getsockopt, fd, here.level, here.name, (long)here.value, (long)&bytes, 0) < 0 ||
            sys6(SYS_getsockopt, fresh, there.level, there.name, (long)there.value, (long)&other_bytes, 0) < 0 ||
            same_bytes(here.value, there.value, SOCKET_OPTION_BYTES))
            continue;
        here.bytes = bytes;
        // The kernel doubles the requested value. Source: socket(7), SO_RCVBUF.
        if (here.level == SOL_SOCKET && (here.name == SO_RCVBUF || here.name == SO_SNDBUF))
            *(uint32_t *)(void *)here.value /= 2;
        struct socket_option *option = table_add(options);
        if (option)
            *option = here;
        else
            result = refuse(f, "descriptors",
                            "the sockets have more options than an image can hold; close some before the freeze", "");
    }
    state->option_count = options->count - state->first_option;
    sys_close((int)fresh);
    return result;
}

// Stores `state`, from which a copy restores the descriptor's socket.
static int revive(struct freezing *f, struct look *look, struct socket_state *state) {
    struct table *sockets = &f->sections[SECTION_SOCKETS];
    int result = describe_options(f, look->to->number, state);
    struct socket_state *to = result ? 0 : table_add(sockets);
    if (result || !to)
        return result ? result
                      : refuse(f, "descriptors",
                               "there are more sockets than an image can hold; close some before the freeze", "");
    *to = *state;
    look->to->kind = DESCRIPTOR_SOCKET;
    look->to->index = sockets->count - 1;
    return 0;
}

static int end_connection(struct freezing *f, struct look *look, struct socket_state *state) {
    if (f->request->flags & FREEZE_REFUSE_CONNECTED)
        return refuse_descriptor(f, look, is_connected);
    state->revival = SOCKET_ENDED;
    state->local_bytes = 0;
    f->report->ended++;
    return revive(f, look, state);
}

static int is_any_port(const struct freezing *f, int number) {
    for (uint32_t i = 0; i < f->request->any_port_count; i++)
        if (f->request->any_port[i] == number)
            return 1;
    return 0;
}

// Whether the port is in the range from which the kernel chooses. Source: ip(7), ip_local_port_range.
static int is_chosen_port(uint32_t port) {
    char text[64] = "";
    const char *at = text;
    read_text_file("/proc/sys/net/ipv4/ip_local_port_range", text, sizeof text);
    uint64_t low = take_number(&at, 10);
    skip_spaces(&at);
    uint64_t high = take_number(&at, 10);
    return high ? port >= low && port <= high : port >= 32768;
}

static int describe_listening(struct freezing *f, struct look *look, struct socket_state *state) {
    struct tcp_info info = {0};
    uint32_t bytes = sizeof info;
    if (!is_inet(state) || state->type != SOCK_STREAM)
        return refuse_descriptor(f, look, listens);
    state->any_port = 1;
    if (!sys6(SYS_getsockopt, look->to->number, IPPROTO_TCP, TCP_INFO, (long)&info, (long)&bytes, 0))
        state->backlog = info.tcpi_sacked; // Source: net/ipv4/tcp.c, tcp_get_info: sk_max_ack_backlog
    state->revival = is_any_port(f, look->to->number)            ? SOCKET_LISTENING
                     : f->request->flags & FREEZE_MUTE_LISTENERS ? SOCKET_MUTE
                                                                 : SOCKET_REVIVALS;
    // SOCKET_REVIVALS marks a refusal, which `sockets_settle` makes once all descriptors are known.
    return revive(f, look, state);
}

static int describe_stream(struct freezing *f, struct look *look, struct socket_state *state) {
    // A socket that was never connected reports a hangup, but is not readable. Source: net/ipv4/tcp.c, tcp_poll.
    short now = poll_now(look->to->number);
    if (state->peer_bytes || !(now & POLLHUP) || now & (POLLIN | POLLRDHUP | POLLERR))
        return end_connection(f, look, state);
    state->revival = SOCKET_NEW;
    if (state->local_bytes && !port_of(state->local))
        state->local_bytes = 0;
    state->any_port = is_any_port(f, look->to->number);
    return revive(f, look, state);
}

static int describe_datagram(struct freezing *f, struct look *look, struct socket_state *state) {
    uint32_t port = port_of(state->local);
    state->revival = SOCKET_NEW;
    state->any_port = is_any_port(f, look->to->number) || is_chosen_port(port);
    // A connected socket gets its local address and port from connect, unless the program has bound it.
    if (!port || (state->peer_bytes && state->any_port))
        state->local_bytes = 0;
    return revive(f, look, state);
}

// Stores the unread data of one end of a socket pair, without removing it from the socket.
static int keep_unread(struct freezing *f, struct look *look) {
    int bytes = 0;
    sys_ioctl(look->to->number, FIONREAD, &bytes);
    if (bytes <= 0)
        return 0;
    if (look->to->value != SOCK_STREAM)
        return refuse_descriptor(f, look, "a socket pair holds messages; read them before the freeze: descriptor ");
    void *to = bytes <= MAX_UNREAD_BYTES ? contents_room(f, look, (uint64_t)bytes) : 0;
    if (!to)
        return refuse_descriptor(f, look, holds_too_much);
    struct iovec part = {to, (uint64_t)bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    long got = sys3(SYS_recvmsg, look->to->number, (long)&message, MSG_PEEK | MSG_DONTWAIT);
    if (got > 0 && message.msg_flags & MSG_CTRUNC)
        return refuse_descriptor(f, look, has_descriptors);
    if (got != bytes)
        return fail(f, "descriptors", SYS_FAILED(got) ? got : -EIO, "the data in a socket pair cannot be copied");
    return 0;
}

// Size of the part of an AF_UNIX address before the name.
#define UNIX_FAMILY_BYTES offsetof(struct sockaddr_un, sun_path)

// Describes a Unix socket whose other end is not in this process.
static int describe_alone(struct freezing *f, struct look *look, struct socket_state *state) {
    int is_named = state->peer_bytes > UNIX_FAMILY_BYTES;
    if (state->type != SOCK_DGRAM && state->peer_bytes)
        return end_connection(f, look, state);
    if (state->local_bytes > UNIX_FAMILY_BYTES && (state->local[UNIX_FAMILY_BYTES] || !state->any_port))
        return refuse_descriptor(f, look, has_path);
    if (state->peer_bytes && !is_named)
        return end_connection(f, look, state);
    state->revival = SOCKET_NEW;
    return revive(f, look, state);
}

static int describe_unix(struct freezing *f, struct look *look, struct socket_state *state) {
    uint32_t peer = unix_peer(look->status.st_ino);
    if (peer == UNKNOWN_PEER)
        return refuse_descriptor(f, look, is_untold);
    // One end was shut down: a new pair would be open in both directions.
    if (peer && state->type != SOCK_DGRAM && poll_now(look->to->number) & POLLRDHUP)
        return refuse_descriptor(f, look, is_half_closed);
    if (peer) {
        look->to->kind = DESCRIPTOR_SOCKETPAIR;
        look->to->value = state->type;
        look->to->position = look->status.st_ino; // identifies this end until `sockets_settle` finds the other
        look->to->index = peer;
        return keep_unread(f, look);
    }
    if (state->peer_bytes && state->type != SOCK_DGRAM)
        return end_connection(f, look, state);
    return describe_alone(f, look, state);
}

// Whether the kernel chose the abstract name, which then has five hexadecimal digits. Source: unix(7), "Autobind
// feature".
static int is_chosen_name(const struct socket_state *state) {
    if (state->local_bytes != UNIX_FAMILY_BYTES + 6 || state->local[UNIX_FAMILY_BYTES])
        return 0;
    for (uint32_t i = UNIX_FAMILY_BYTES + 1; i < state->local_bytes; i++) {
        char c = state->local[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return 0;
    }
    return 1;
}

static void look_at_socket(int fd, struct socket_state *state) {
    *state = (struct socket_state){
        .family = (uint32_t)option_of(fd, SO_DOMAIN),
        .type = (uint32_t)option_of(fd, SO_TYPE),
        .protocol = (uint32_t)option_of(fd, SO_PROTOCOL),
    };
    take_address(SYS_getsockname, fd, state->local, &state->local_bytes);
    take_address(SYS_getpeername, fd, state->peer, &state->peer_bytes);
    if (state->family == AF_UNIX)
        state->any_port = (uint32_t)is_chosen_name(state);
}

int socket_describe(struct freezing *f, struct look *look) {
    struct socket_state state;
    look_at_socket(look->to->number, &state);
    if (option_of(look->to->number, SO_ACCEPTCONN))
        return describe_listening(f, look, &state);
    if (state.family == AF_UNIX)
        return describe_unix(f, look, &state);
    if (!is_inet(&state))
        return refuse_descriptor(f, look, is_unknown);
    if (state.type == SOCK_STREAM)
        return describe_stream(f, look, &state);
    return state.type == SOCK_DGRAM ? describe_datagram(f, look, &state) : refuse_descriptor(f, look, is_unknown);
}

// The other end of a socket pair; NULL if it is not in this process.
static struct descriptor *other_end(struct freezing *f, uint32_t first, const struct descriptor *one) {
    struct table *table = &f->sections[SECTION_DESCRIPTORS];
    for (uint32_t i = first; i < table->count; i++) {
        struct descriptor *candidate = AT(*table, struct descriptor, i);
        if (candidate->kind == DESCRIPTOR_SOCKETPAIR && candidate->position == one->index &&
            candidate->index == one->position)
            return candidate;
    }
    return 0;
}

// Stores the number of each end in the record of the other. A socket whose other end is not in this process is
// described by describe_alone. Before this function, `position` is the inode of this end, and `index` that of the other
// end.
static int pair(struct freezing *f, uint32_t index) {
    struct descriptor *one = AT(f->sections[SECTION_DESCRIPTORS], struct descriptor, index);
    if (one->kind != DESCRIPTOR_SOCKETPAIR || !one->position)
        return 0;
    struct descriptor *other = other_end(f, index + 1, one);
    if (other) {
        one->position = other->position = 0;
        one->index = (uint32_t)other->number;
        other->index = (uint32_t)one->number;
        return 0;
    }
    struct look look = {.to = one, .link = "socket"};
    struct socket_state state;
    look_at_socket(one->number, &state);
    one->position = one->value = one->data_bytes = 0;
    contents_forget(f, index);
    return describe_alone(f, &look, &state);
}

static int refuse_listening(struct freezing *f, struct descriptor *descriptor) {
    char thread[64];
    struct look look = {.to = descriptor, .link = "socket"};
    struct writer out = text_writer(look.link, sizeof look.link);
    const struct socket_state *state = AT(f->sections[SECTION_SOCKETS], struct socket_state, descriptor->index);
    put_text(&out, is_inet(state) ? "port " : "socket");
    if (is_inet(state))
        put_number(&out, port_of(state->local), 10);
    if (park_who_waits(f, descriptor->number, thread, sizeof thread)) {
        put_text(&out, ", held by thread ");
        put_text(&out, thread);
    }
    return refuse_descriptor(f, &look, listens);
}

// Whether `socket` is connected to a socket of this process whose port or name differs in each copy.
static int is_own_port(struct freezing *f, const struct socket_state *socket) {
    const struct table *sockets = &f->sections[SECTION_SOCKETS];
    for (uint32_t i = 0; i < sockets->count; i++) {
        const struct socket_state *own = AT(*sockets, struct socket_state, i);
        int is_new = own->revival == SOCKET_NEW || own->revival == SOCKET_LISTENING;
        if (!is_new || !own->any_port || !own->local_bytes || !socket->peer_bytes || own->type != socket->type)
            continue;
        if (own->family == AF_UNIX && socket->family == AF_UNIX && own->local_bytes == socket->peer_bytes &&
            same_bytes(own->local, socket->peer, own->local_bytes))
            return 1;
        if (is_inet(own) && is_inet(socket) && port_of(own->local) == port_of(socket->peer))
            return 1;
    }
    return 0;
}

static int refuse_own_peers(struct freezing *f) {
    const struct table *table = &f->sections[SECTION_DESCRIPTORS];
    for (uint32_t i = 0; i < table->count; i++) {
        struct descriptor *one = AT(*table, struct descriptor, i);
        struct look look = {.to = one, .link = "socket"};
        if (one->kind == DESCRIPTOR_SOCKET &&
            is_own_port(f, AT(f->sections[SECTION_SOCKETS], struct socket_state, one->index)))
            return refuse_descriptor(f, &look, has_own_peer);
    }
    return 0;
}

int sockets_settle(struct freezing *f) {
    struct table *table = &f->sections[SECTION_DESCRIPTORS];
    int result = 0;
    for (uint32_t i = 0; !result && i < table->count; i++) {
        struct descriptor *one = AT(*table, struct descriptor, i);
        result = pair(f, i);
        if (!result && one->kind == DESCRIPTOR_SOCKET &&
            AT(f->sections[SECTION_SOCKETS], struct socket_state, one->index)->revival == SOCKET_REVIVALS)
            result = refuse_listening(f, one);
    }
    return result ? result : refuse_own_peers(f);
}
