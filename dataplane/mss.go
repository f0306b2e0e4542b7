package dataplane

import "encoding/binary"

// minMSS is the least MSS that mssFor gives: what is left of the smallest datagram that every IPv4 host must take, 576
// bytes, would be 536, but a path may be narrower (RFC 879); 48 is where Linux stops (net.ipv4.tcp_min_snd_mss).
const minMSS = 48

// mssFor gives the MSS with which the segments of the flow that p, an IP packet of either version, belongs to fit into
// packets of mtu bytes. TCP options are not deducted, as senders do that (RFC 9293 3.7.1).
func mssFor(p []byte, mtu int) int {
	if p[0]>>4 == 4 {
		return max(mtu-ipv4HeaderLen-tcpHeaderLen, minMSS)
	}
	return max(mtu-ipv6HeaderLen-tcpHeaderLen, minMSS)
}

// clampMSS lowers the MSS option of a TCP SYN (or SYN-ACK) to mss bytes and corrects the checksum (RFC 1624). It reports
// whether it changed anything: a packet that is not a whole SYN, has no MSS option (RFC 9293 then assumes 536 or 1220,
// which fits), a smaller one, or options that cannot be read, stays as it is.
func clampMSS(p []byte, mss int) bool {
	const syn, rst = 0x02, 0x04
	// Nearly all packets are no SYN, which shows without a walk where TCP follows the IP header at once.
	if at := likelyTransport(p); at+tcpHeaderLen <= len(p) && p[at+13]&syn == 0 {
		return false
	}
	var h ipHeader
	if h.parse(p) != nil || h.proto != protoTCP || h.fragment || h.total-h.transport < tcpHeaderLen {
		return false
	}
	tcp := p[h.transport:h.total]
	length := int(tcp[12]>>4) * 4
	if tcp[13]&(syn|rst) != syn || length < tcpHeaderLen || length > len(tcp) {
		return false
	}
	options := tcp[:length]
	for i := tcpHeaderLen; i < len(options); {
		const end, nop, maxSegSize = 0, 1, 2
		switch options[i] {
		case end:
			return false
		case nop:
			i++
			continue
		}
		if i+1 >= len(options) {
			return false
		}
		n := int(options[i+1])
		if n < 2 || i+n > len(options) {
			return false
		}
		if options[i] == maxSegSize {
			if n != 4 {
				return false
			}
			old := int(binary.BigEndian.Uint16(options[i+2:]))
			if old <= mss || mss < 0 {
				return false
			}
			setChecksummed16(tcp, 16, i+2, uint16(mss))
			return true
		}
		i += n
	}
	return false
}

// likelyTransport gives where the transport header of a TCP packet begins if no IPv6 extension header precedes it, and
// else, or where it cannot tell, something beyond the packet.
func likelyTransport(p []byte) int {
	switch {
	case len(p) < ipv4HeaderLen:
	case p[0]>>4 == 4:
		return int(p[0]&0x0f) * 4
	case p[0]>>4 == 6 && p[6] == protoTCP:
		return ipv6HeaderLen
	}
	return len(p)
}

// setChecksummed16 writes v at offset at of a transport header whose checksum lies at offset sum, and keeps that right.
// With at odd the bytes belong to two different words of the sum; both are accounted for.
func setChecksummed16(hdr []byte, sum, at int, v uint16) {
	old := binary.BigEndian.Uint16(hdr[at:])
	binary.BigEndian.PutUint16(hdr[at:], v)
	if at&1 != 0 {
		// A word at an odd offset counts with its bytes exchanged (RFC 1071 2 B).
		old, v = old<<8|old>>8, v<<8|v>>8
	}
	checksumUpdate(hdr[sum:sum+2], old, v)
}
