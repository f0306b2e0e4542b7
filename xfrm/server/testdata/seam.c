// Gives a program a connection to the server under test where it asks for an XFRM netlink socket. For tests, with LD_PRELOAD.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/netlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int ours = -1;

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int socket(int domain, int type, int protocol) {
	if (domain != AF_NETLINK || protocol != NETLINK_XFRM)
		return NEXT(socket)(domain, type, protocol);
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	strncpy(a.sun_path, getenv("CULVERT_TEST_SERVER"), sizeof a.sun_path - 1);
	int fd = NEXT(socket)(AF_UNIX, SOCK_SEQPACKET | (type & SOCK_CLOEXEC), 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
		return -1;
	return ours = fd;
}

int bind(int fd, const struct sockaddr *a, socklen_t n) {
	if (fd != ours)
		return NEXT(bind)(fd, a, n);
	unsigned groups = ((const struct sockaddr_nl *)a)->nl_groups;
	return send(fd, &groups, sizeof groups, 0) == sizeof groups ? 0 : -1;
}

int getsockname(int fd, struct sockaddr *a, socklen_t *n) {
	if (fd != ours)
		return NEXT(getsockname)(fd, a, n);
	struct sockaddr_nl nl = {.nl_family = AF_NETLINK, .nl_pid = getpid()};
	memcpy(a, &nl, sizeof nl);
	*n = sizeof nl;
	return 0;
}

int setsockopt(int fd, int level, int name, const void *v, socklen_t n) {
	if (fd == ours && level == SOL_NETLINK)
		return 0;
	return NEXT(setsockopt)(fd, level, name, v, n);
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags) {
	socklen_t room = m->msg_namelen;
	ssize_t n = NEXT(recvmsg)(fd, m, flags);
	if (fd == ours && n >= 0 && m->msg_name && room >= sizeof(struct sockaddr_nl)) {
		struct sockaddr_nl nl = {.nl_family = AF_NETLINK};
		memcpy(m->msg_name, &nl, sizeof nl);
		m->msg_namelen = sizeof nl;
	}
	return n;
}
