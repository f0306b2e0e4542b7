# An IKE daemon as far as its UDP sockets go: daemon.py ORDER ADDRESS..., at port 4500. ORDER is "bind" or "encap", for what comes
# first, or "reuseport" or "reuseaddr". It prints "ready", or the errno of what failed, and then each datagram's length and first bytes.
import errno, select, socket, sys

UDP_ENCAP = 100
order, addresses = sys.argv[1], sys.argv[2:]
socks = []
try:
    for a in addresses:
        six = ":" in a
        s = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM)
        if six:
            s.setsockopt(41, socket.IPV6_V6ONLY, 1)
        if order == "reuseaddr":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if order == "reuseport":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if order == "encap":
            s.setsockopt(socket.IPPROTO_UDP, UDP_ENCAP, 2)
        s.bind((a, 4500))
        if order != "encap":
            s.setsockopt(socket.IPPROTO_UDP, UDP_ENCAP, 2)
        s.setsockopt(socket.IPPROTO_UDP, UDP_ENCAP, 2)  # a second time changes nothing
        socks.append(s)
except OSError as e:
    print(errno.errorcode[e.errno], flush=True)
    sys.exit(3)
print("ready", flush=True)
while True:
    for s in select.select(socks, [], [])[0]:
        b, peer = s.recvfrom(65536)
        print(len(b), b[:4].hex(), flush=True)
        if b == b"\0\0\0\0off":
            s.setsockopt(socket.IPPROTO_UDP, UDP_ENCAP, 0)
            print("off", flush=True)
