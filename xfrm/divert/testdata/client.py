# A netlink client by someone else's socket library: every call in many orders. Run under the launcher, it prints "ok".
import array, ctypes, errno, os, random, select, socket, struct, sys, threading

XFRM, SOL, GETSPDINFO, NEWSPDINFO = 6, 270, 0x25, 0x24
ADD, DROP, EXT_ACK, CAP_ACK, LIST = 1, 2, 11, 10, 9


def request(seq):
    return struct.pack("=IHHIII", 20, GETSPDINFO, 1, seq, 0, 0)


def check(cond, what):
    if not cond:
        raise AssertionError(what)


def answer(s, seq):
    b = s.recv(8192)
    n, typ, _, got, _ = struct.unpack("=IHHII", b[:16])
    check(typ == NEWSPDINFO and got == seq, "type %d seq %d, want seq %d" % (typ, got, seq))


def make(extra=0, kind=socket.SOCK_RAW):
    return socket.socket(socket.AF_NETLINK, kind | extra, XFRM)


def plain(rnd):
    s = make(kind=rnd.choice([socket.SOCK_RAW, socket.SOCK_DGRAM]))
    steps = ["bind", "name", "ext", "join", "ask", "dup", "dropped", "connect", "nonblock", "poll", "select", "list", "fork", "pass", "sendmsg"]
    rnd.shuffle(steps)
    seq = rnd.randrange(1 << 30)
    for step in steps:
        seq += 1
        if step == "bind":
            s.bind((0, 0xc3))
            check(s.getsockname()[1] & 0xc3 == 0xc3, "groups %r" % (s.getsockname(),))
        elif step == "name":
            check(s.getsockname()[0] != 0, "no port")
        elif step == "ext":
            s.setsockopt(SOL, EXT_ACK, 1)
            check(s.getsockopt(SOL, EXT_ACK) == 1, "EXT_ACK")
            s.setsockopt(SOL, CAP_ACK, 0)
            check(s.getsockopt(SOL, CAP_ACK) == 0, "CAP_ACK")
        elif step == "join":
            s.setsockopt(SOL, ADD, 3)
            check(s.getsockname()[1] & 4, "joined")
        elif step == "dropped":
            s.setsockopt(SOL, ADD, 4)
            s.setsockopt(SOL, DROP, 4)
            check(not s.getsockname()[1] & 8, "dropped")
        elif step == "list":
            b = s.getsockopt(SOL, LIST, 64)
            check(len(b) == 4 and struct.unpack("=I", b)[0] == s.getsockname()[1], "list %r" % b)
        elif step == "connect":
            s.connect((0, 0))
        elif step == "ask":
            s.sendto(request(seq), (0, 0))
            answer(s, seq)
        elif step == "sendmsg":
            s.sendmsg([request(seq)[:16], request(seq)[16:]], [], 0, (0, 0))
            b, _, flags, name = s.recvmsg(8)
            check(len(b) == 8 and flags & socket.MSG_TRUNC, "truncation")
        elif step == "dup":
            d = socket.socket(fileno=os.dup(s.fileno()))
            d.setsockopt(SOL, ADD, 2)
            check(s.getsockname()[1] & 2, "a duplicate is the same socket")
            d.send(request(seq))
            d.close()
            answer(s, seq)
        elif step == "nonblock":
            s.setblocking(False)
            try:
                s.recv(100)
                raise AssertionError("nothing was to be read")
            except BlockingIOError:
                pass
            s.setblocking(True)
        elif step == "poll":
            p = select.poll()
            p.register(s, select.POLLIN)
            check(p.poll(0) == [], "poll with nothing to read")
            s.send(request(seq))
            check(p.poll(5000) == [(s.fileno(), select.POLLIN)], "poll")
            answer(s, seq)
        elif step == "select":
            s.send(request(seq))
            check(select.select([s], [], [], 5)[0] == [s], "select")
            check(len(s.recv(1 << 16, socket.MSG_PEEK | socket.MSG_TRUNC)) > 16, "peek")
            answer(s, seq)
        elif step == "fork":
            pid = os.fork()
            if pid == 0:
                try:
                    s.send(request(seq))
                    answer(s, seq)
                    s.setsockopt(SOL, ADD, 1)
                    t = make()
                    t.bind((0, 0))
                    t.send(request(9))
                    answer(t, 9)
                    os._exit(0)
                except BaseException as e:
                    print("child:", repr(e), file=sys.stderr)
                    os._exit(1)
            check(os.waitpid(pid, 0)[1] == 0, "the child failed")
            check(s.getsockname()[1] & 1, "a child's socket is the same")
        elif step == "pass":
            a, b = socket.socketpair()
            a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno()]))])
            _, anc, _, _ = b.recvmsg(1, socket.CMSG_SPACE(4))
            fd = array.array("i")
            fd.frombytes(anc[0][2][:4])
            q = socket.socket(fileno=fd[0])
            q.setsockopt(SOL, EXT_ACK, 1)
            q.send(request(seq))
            answer(q, seq)
            for x in (a, b, q):
                x.close()
    s.close()


def refusals():
    def fails(want, f):
        try:
            f()
        except OSError as e:
            check(e.errno == want, "errno %d, want %d" % (e.errno, want))
            return
        raise AssertionError("no error, want %d" % want)

    s = make()
    fails(errno.ENOPROTOOPT, lambda: s.setsockopt(SOL, 77, 1))
    fails(errno.ENOPROTOOPT, lambda: s.getsockopt(SOL, 77))
    fails(errno.EINVAL, lambda: s.setsockopt(SOL, ADD, 0))
    fails(errno.EINVAL, lambda: s.setsockopt(SOL, EXT_ACK, b"x"))
    fails(errno.ESOCKTNOSUPPORT, lambda: make(kind=socket.SOCK_STREAM))
    libc = ctypes.CDLL(None, use_errno=True)

    def raw(call, *a):
        if getattr(libc, call)(*a) < 0:
            e = ctypes.get_errno()
            raise OSError(e, os.strerror(e))

    fails(errno.EFAULT, lambda: raw("bind", s.fileno(), ctypes.c_void_p(8), 12))
    fails(errno.EINVAL, lambda: raw("bind", s.fileno(), struct.pack("=HHII", 2, 0, 0, 0), 12))
    fails(errno.EFAULT, lambda: raw("getsockname", s.fileno(), ctypes.c_void_p(8), ctypes.byref(ctypes.c_int(12))))
    fails(errno.EFAULT, lambda: raw("setsockopt", s.fileno(), SOL, EXT_ACK, ctypes.c_void_p(8), 4))
    fails(errno.EBADF, lambda: raw("bind", 999, struct.pack("=HHII", 16, 0, 0, 0), 12))
    fails(errno.ENOTSOCK, lambda: raw("getsockname", os.open("/dev/null", 0), ctypes.create_string_buffer(12), ctypes.byref(ctypes.c_int(12))))
    t = make()
    t.bind((77777, 0))
    check(t.getsockname()[0] == 77777, "a port of one's own")
    fails(errno.EADDRINUSE, lambda: s.bind((77777, 0)))
    # Lowest number, and what CLOEXEC and NONBLOCK say.
    lowest = os.open("/dev/null", 0)
    os.close(lowest)
    fd = libc.socket(16, 3, 6)
    check(fd == lowest and os.get_inheritable(fd) and os.get_blocking(fd), "fd %d, want %d" % (fd, lowest))
    fd2 = libc.socket(16, 3 | 0o2000000 | 0o4000, 6)
    check(not os.get_inheritable(fd2) and not os.get_blocking(fd2), "CLOEXEC, NONBLOCK")
    # What is not XFRM's is the kernel's.
    route = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    route.bind((0, 0))
    check(route.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == 16, "rtnetlink")
    route.setsockopt(SOL, EXT_ACK, 1)
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    u.setsockopt(0, 17, b"\0" * 168)  # IP_XFRM_POLICY
    u.bind(("127.0.0.1", 0))
    check(u.getsockname()[0] == "127.0.0.1", "udp")
    v = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    v.setsockopt(41, 35, b"\0" * 168)


def compat(rnd):
    s = make()
    s.bind((0, 0))
    for seq in range(1, 20):
        s.send(request(seq))
        if seq % 2:
            b, name = s.recvfrom(rnd.choice([100, 8192]))
        else:
            b, _, flags, name = s.recvmsg(8192)
            check(flags == 0, "flags")
        check(name == (0, 0), "a sender's address of netlink, not %r" % (name,))
        check(struct.unpack("=I", b[8:12])[0] == seq, "sequence")
    s.settimeout(None)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 200000))
    try:
        s.recvfrom(100)
        raise AssertionError("nothing was to be read")
    except BlockingIOError:
        pass
    t = threading.Timer(0.2, lambda: s.send(request(99)))
    t.start()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 5, 0))
    b, name = s.recvfrom(8)
    check(len(b) == 8 and name == (0, 0), "waiting")
    t.join()
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    a.send(b"hello")
    check(b.recvfrom(10)[0] == b"hello" , "others' sockets")


def main():
    mode, seed = sys.argv[1], int(sys.argv[2])
    failed = []

    def run(i):
        try:
            for k in range(4):
                {"plain": plain, "compat": compat}[mode](random.Random(seed * 1000 + i * 10 + k))
        except BaseException as e:
            import traceback
            traceback.print_exc()
            failed.append(e)

    refusals()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if not failed:
        print("ok")


main()
