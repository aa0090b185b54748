// Runs in the process that is frozen. Sockets: two that are connected with each other come back, all others are
// refused.

#define _GNU_SOURCE
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <sys/socket.h>

#include "descriptors.h"
#include "sys.h"

const char socket_is_connected[] =
    "a connected socket cannot be frozen: its other end is outside. Close the connection before the freeze (in a "
    "before-snapshot hook), or open it on the first invocation: descriptor ";

static int option_of(int fd, int option) {
    int value = 0;
    uint32_t bytes = sizeof value;
    sys6(SYS_getsockopt, fd, SOL_SOCKET, option, (long)&value, (long)&bytes, 0);
    return value;
}

struct answer {
    uint32_t peer;    // inode of the other end; 0: none
    uint32_t waiting; // bytes that have been sent and not read
};

// Asks the kernel about the AF_UNIX socket `inode`. Source: sock_diag(7). Whether it told of another end.
static int ask_for_peer(uint64_t inode, struct answer *answer) {
    struct {
        struct nlmsghdr header;
        struct unix_diag_req request;
    } question = {
        .header = {.nlmsg_len = sizeof question, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
        .request = {.sdiag_family = AF_UNIX,
                    .udiag_states = UINT32_MAX,
                    .udiag_ino = (uint32_t)inode,
                    .udiag_show = UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN,
                    .udiag_cookie = {UINT32_MAX, UINT32_MAX}},
    };
    char reply[1024] __attribute__((aligned(8)));
    long fd = sys3(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (SYS_FAILED(fd))
        return 0;
    long bytes = sys_write((int)fd, &question, sizeof question);
    if (!SYS_FAILED(bytes))
        bytes = sys_read((int)fd, reply, sizeof reply);
    sys_close((int)fd);
    const struct nlmsghdr *header = (const void *)reply;
    uint64_t at = sizeof *header + sizeof(struct unix_diag_msg);
    if (bytes < (long)at || header->nlmsg_type != SOCK_DIAG_BY_FAMILY)
        return 0;
    while (at + sizeof(struct nlattr) <= (uint64_t)bytes) {
        const struct nlattr *attribute = (const void *)(reply + at);
        const uint32_t *value = (const void *)(reply + at + sizeof *attribute);
        if (attribute->nla_len < sizeof *attribute)
            break;
        if (attribute->nla_type == UNIX_DIAG_PEER)
            answer->peer = *value;
        else if (attribute->nla_type == UNIX_DIAG_RQLEN)
            answer->waiting = *value;
        at += (attribute->nla_len + 3u) & ~3u;
    }
    return answer->peer != 0;
}

const char *socket_describe(struct descriptor *to, uint64_t inode) {
    struct answer answer = {0};
    char peer[128];
    uint32_t peer_bytes = sizeof peer;
    if (option_of(to->number, SO_ACCEPTCONN))
        return "a listening socket cannot be frozen; open it on the first invocation: descriptor ";
    int connected = sys3(SYS_getpeername, to->number, (long)peer, (long)&peer_bytes) == 0;
    if (option_of(to->number, SO_DOMAIN) == AF_UNIX && ask_for_peer(inode, &answer)) {
        if (answer.waiting)
            return "a pair of sockets holds data that was not read; read it before the freeze: descriptor ";
        to->kind = DESCRIPTOR_SOCKETPAIR;
        to->value = (uint64_t)option_of(to->number, SO_TYPE);
        to->position = inode; // until `pair_sockets` has found the other end
        to->index = answer.peer;
        return 0;
    }
    if (connected)
        return socket_is_connected;
    return "a socket cannot be frozen; close it before the freeze, or make it on the first invocation: descriptor ";
}
