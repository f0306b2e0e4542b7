"""Seals and opens ESP packets with scapy.layers.ipsec, as an independent judge of what Culvert sends and receives.

Reads one JSON list of jobs on standard input and writes one JSON list of results, in the same order. A job:

  op       "seal" or "open"
  crypt    a name of scapy's CRYPT_ALGOS;   key       hex, salt last
  auth     a name of scapy's AUTH_ALGOS;    auth_key  hex
  spi, src, dst                             the SA; src and dst are the outer addresses
  natt     [sport, dport] for ESP in UDP, absent for native ESP
  esn      whether sequence numbers have 64 bits
  packets  seal: [{"inner", "seq", "iv"?, "pad"?, "nh"?, "tfc"?}]; pad replaces the monotonic padding (its pad length is
           "padlen"? or its length), nh the next header, tfc is put between the inner packet and the padding
           open: [{"wire", "seqhi"?}]; wire is a whole IP packet

A result is {"packets": [hex, ...], "errors": [text or null, ...]}, hex of a whole IP packet: the outer one after sealing, the
inner one after opening.

Three things scapy 2.5 lacks are added here: HMAC-SHA-256 cut to 96 bits (an AuthAlgo of another length); the high half of an
extended sequence number under an HMAC (RFC 4303 2.2.1: appended to what is authenticated, not sent); and the UDP length of
an encapsulated packet over IPv4, which it computes before the ESP packet is there.
"""
import json
import struct
import sys
import warnings

warnings.simplefilter("ignore")

from cryptography.hazmat.primitives import hashes  # noqa: E402
from cryptography.hazmat.primitives.hmac import HMAC  # noqa: E402
from scapy.layers import ipsec  # noqa: E402
from scapy.layers.inet import IP, UDP  # noqa: E402
from scapy.layers.inet6 import IPv6  # noqa: E402
from scapy.packet import Raw, raw  # noqa: E402


class ESNAuthAlgo(ipsec.AuthAlgo):
    """An integrity algorithm that authenticates the high 32 bits of the sequence number too."""

    high = None

    def new_mac(self, key):
        mac = ipsec.AuthAlgo.new_mac(self, key)
        if self.high is None:
            return mac
        return _Trailed(mac, struct.pack("!L", self.high))


class _Trailed(object):
    def __init__(self, mac, trailer):
        self.mac, self.trailer = mac, trailer
        self.update = mac.update

    def finalize(self):
        self.mac.update(self.trailer)
        return self.mac.finalize()


ipsec.AUTH_ALGOS["SHA2-256-96"] = ipsec.AuthAlgo("SHA2-256-96", mac=HMAC, digestmod=hashes.SHA256, icv_size=12)
for name, a in list(ipsec.AUTH_ALGOS.items()):
    ipsec.AUTH_ALGOS[name] = ESNAuthAlgo(a.name, mac=a.mac, digestmod=a.digestmod, icv_size=a.icv_size, key_size=a.key_size)


def layer(data):
    return IPv6(data) if data[0] >> 4 == 6 else IP(data)


def association(job):
    v6 = ":" in job["src"]
    outer = IPv6(src=job["src"], dst=job["dst"]) if v6 else IP(src=job["src"], dst=job["dst"])
    natt = job.get("natt")
    return ipsec.SecurityAssociation(
        ipsec.ESP,
        spi=job["spi"],
        crypt_algo=job["crypt"],
        crypt_key=bytes.fromhex(job.get("key") or ""),
        auth_algo=job.get("auth"),
        auth_key=bytes.fromhex(job.get("auth_key") or ""),
        tunnel_header=outer,
        nat_t_header=UDP(sport=natt[0], dport=natt[1]) if natt else None,
        esn_en=bool(job.get("esn")),
    )


def shaped(sa, p):
    """Gives the SA a padding rule of its own for one packet, and returns what undoes that."""
    algo = sa.crypt_algo
    plain = algo.pad

    def pad(esp):
        if p.get("tfc"):
            esp.data = Raw(raw(esp.data) + bytes.fromhex(p["tfc"]))
        if p.get("pad") is None:
            esp = plain(esp)
        else:
            esp.padding = bytes.fromhex(p["pad"])
            esp.padlen = p.get("padlen", len(esp.padding))
        if p.get("nh") is not None:
            esp.nh = p["nh"]
        return esp

    algo.pad = pad

    def undo():
        del algo.pad

    return undo


def seal(sa, job, p):
    seq, high = p["seq"] & 0xFFFFFFFF, p["seq"] >> 32
    sa.auth_algo.high = high if job.get("esn") else None
    undo = shaped(sa, p)
    try:
        iv = bytes.fromhex(p["iv"]) if p.get("iv") else None
        # scapy takes `esn or self.esn`, so both are set: a zero high half is a value, not an absence.
        sa.esn = high
        # Number 0 is never sent by an ESP, but a receiver is to be tried with it: scapy falls back to seq_num for it.
        sa.seq_num = seq
        pkt = sa.encrypt(layer(bytes.fromhex(p["inner"])), seq_num=seq, iv=iv)
        if pkt.haslayer(UDP) and pkt.version == 4:
            pkt[UDP].len = pkt.len - 4 * pkt.ihl
        return raw(pkt)
    finally:
        undo()


def opened(sa, job, p):
    sa.auth_algo.high = p.get("seqhi", 0) if job.get("esn") else None
    sa.esn = p.get("seqhi", 0)
    pkt = layer(bytes.fromhex(p["wire"]))
    if job.get("natt"):
        # Only ports 4500 are bound to ESP in scapy; others are told apart by the job.
        udp = pkt[UDP]
        if not pkt.haslayer(ipsec.ESP):
            data = raw(udp.payload)
            udp.remove_payload()
            udp.add_payload(ipsec.ESP(data))
    return raw(sa.decrypt(pkt))


def main():
    results = []
    for job in json.load(sys.stdin):
        sa = association(job)
        act = {"seal": seal, "open": opened}[job["op"]]
        packets, errors = [], []
        for p in job["packets"]:
            try:
                packets.append(act(sa, job, p).hex())
                errors.append(None)
            except Exception as e:  # the judge's verdict is data, whatever its type
                packets.append("")
                errors.append("%s: %s" % (type(e).__name__, e))
        results.append({"packets": packets, "errors": errors})
    json.dump(results, sys.stdout)


main()
