package dataplane

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"math/rand/v2"

	"culvert/dataplane/link"
)

const (
	// coalescerPackets is how many packets a coalescer holds between two flushes; the inbound lane adds a burst.
	coalescerPackets = 128
	// coalescerFlows is how many flows it tells apart in that time. Packets of further flows pass alone.
	coalescerFlows = 64
	flowSlots      = 2 * coalescerFlows // half empty, so that a probe is short

	// maxUDPSegments is what every kernel with UDP GSO takes (UDP_MAX_SEGMENTS was 64 before Linux 6.9).
	maxUDPSegments = 64
	maxPacket      = 0xffff
)

// A run fits into any writer's gather list, and its number into a flowSlot.
const _ = uint(link.MaxParts - coalescerPackets)

// coalescer gathers the packets of one burst into super-packets for the inner link, as the kernel's GRO would: a run of
// packets of one TCP or UDP flow that differ only in what segmentation makes different becomes one packet, which the host
// handles at the price of one. Nothing is copied: a super-packet is a gather list of the first packet and the payloads of
// the others, and only the first packet's headers are changed. Segmenting a super-packet gives back the packets it was
// made of, save for IPv4 IDs that were all the same: they count up, which says nothing where DF is set (RFC 6864 4.1).
//
// Both checksums are verified before a packet is merged, since merging replaces them; one that is wrong passes alone and as
// it is, so that its receiver drops it. Verifying waits until there is something to merge with. The order of a flow's
// packets is kept, also between those merged and those not.
//
// The zero value is ready for use. A coalescer belongs to one goroutine, and allocates nothing.
type coalescer struct {
	seed    uint64 // of the hash, so that nobody can aim at one slot; 0 before the first packet
	n       int    // packets
	runs    int
	flows   int
	barrier int // runs before this one take no further packets

	pkts  [coalescerPackets][]byte
	after [coalescerPackets]int16 // the next packet of the same run
	run   [coalescerPackets]run
	table [flowSlots]flowSlot
	parts [coalescerPackets][]byte
}

// run is what goes to the inner link as one: a single packet, or several of one flow.
type run struct {
	first, last int16
	count       int16
	gso         link.GSOType
	open        bool // may grow
	verified    bool // the checksums of the first packet are right; those of the others always are
	fixedID     bool // the IPv4 IDs are all the same
	push        bool // the last packet has PSH
	transport   int  // offset of the transport header
	header      int  // length of all headers
	segment     int  // payload of the first packet
	size        int  // of the super-packet
	wire        int  // of all packets together
	seq         uint32
}

// flowSlot is the latest run of a flow; run counts from 1, and 0 says that the slot is empty.
type flowSlot struct {
	hash uint32
	run  int16
}

// The parts of a packet's nature that decide over its merging.
type mergeKind uint8

const (
	mergeNever   mergeKind = iota // not of a flow that is ever merged
	mergeBarrier                  // may belong to any flow: nothing may pass it
	mergeTCP
	mergeUDP
)

// Add takes a packet, which is as long as its IP header says. It stays in use, and its headers may change, until Flush
// returns. Add reports false when the coalescer is full, and has not taken the packet then.
func (c *coalescer) Add(pkt []byte) bool {
	if c.n == coalescerPackets {
		return false
	}
	i := int16(c.n)
	c.n++
	c.pkts[i] = pkt

	kind, transport := mergeKindOf(pkt)
	switch kind {
	case mergeNever:
		c.begin(i, pkt)
		return true
	case mergeBarrier:
		c.begin(i, pkt)
		c.barrier = c.runs
		return true
	}
	header := transport + udpHeaderLen
	var more bool // this packet may be merged with others
	if kind == mergeTCP {
		header, more = mergeableTCP(pkt, transport)
	} else {
		more = mergeableUDP(pkt, transport)
	}
	slot := c.find(pkt, transport, kind)
	if slot != nil && slot.run != 0 && more {
		r := &c.run[slot.run-1]
		if r.open && int(slot.run) > c.barrier && c.join(r, i, pkt, transport, header) {
			return true
		}
	}
	r := c.begin(i, pkt)
	if slot == nil {
		return true // too many flows
	}
	if slot.run == 0 {
		if !more {
			slot.hash = 0
			return true // nothing can follow it, so the flow need not be known yet
		}
		c.flows++
	}
	slot.run = int16(c.runs)
	if !more {
		return true
	}
	r.transport, r.header, r.segment = transport, header, len(pkt)-header
	r.open = true
	switch {
	case kind == mergeUDP:
		r.gso = link.GSOUDPL4
	case pkt[0]>>4 == 4:
		r.gso = link.GSOTCP4
	default:
		r.gso = link.GSOTCP6
	}
	if kind == mergeTCP {
		r.seq = binary.BigEndian.Uint32(pkt[transport+4:]) + uint32(r.segment)
		r.open = pkt[transport+13]&tcpPSH == 0
	}
	return true
}

// begin makes a run of packet i alone.
func (c *coalescer) begin(i int16, pkt []byte) *run {
	r := &c.run[c.runs]
	c.runs++
	*r = run{first: i, last: i, count: 1, size: len(pkt), wire: len(pkt)}
	return r
}

// mergeKindOf says what the IP header and the protocol allow, and where the transport header begins.
func mergeKindOf(pkt []byte) (kind mergeKind, transport int) {
	if len(pkt) < ipv4HeaderLen {
		return mergeNever, 0
	}
	var proto uint8
	kind = mergeTCP
	switch {
	case pkt[0]>>4 == 4:
		proto, transport = pkt[9], ipv4HeaderLen
		if pkt[0] != 0x45 || binary.BigEndian.Uint16(pkt[6:])&0x3fff != 0 {
			kind = mergeBarrier // options, or a fragment
		}
	case pkt[0]>>4 == 6 && len(pkt) >= ipv6HeaderLen:
		proto, transport = pkt[6], ipv6HeaderLen
		switch proto {
		case protoHopByHop, protoDestOptions, protoRouting, protoAH, protoFragment:
			return mergeBarrier, 0
		}
	default:
		return mergeNever, 0
	}
	min := tcpHeaderLen
	switch proto {
	case protoTCP:
	case protoUDP:
		min = udpHeaderLen
		if kind == mergeTCP {
			kind = mergeUDP
		}
	default:
		return mergeNever, 0
	}
	if kind != mergeBarrier && len(pkt)-transport < min {
		return mergeNever, 0
	}
	return kind, transport
}

// mergeableTCP says whether a TCP packet may be part of a super-packet: data with ACK, and at most PSH and ECE beside it. A
// segment with CWR is kept apart, since segmenting would show it on the first packet only.
func mergeableTCP(pkt []byte, transport int) (header int, ok bool) {
	tcp := pkt[transport:]
	length := int(tcp[12]>>4) * 4
	ok = length >= tcpHeaderLen && length < len(tcp) && tcp[13]&^(tcpPSH|tcpECE) == tcpACK
	return transport + length, ok
}

// mergeableUDP says whether a UDP packet may be part of a super-packet. One without a checksum may not, since segmenting
// would give it one.
func mergeableUDP(pkt []byte, transport int) bool {
	udp := pkt[transport:]
	return len(udp) > udpHeaderLen && int(binary.BigEndian.Uint16(udp[4:])) == len(udp) && (udp[6] != 0 || udp[7] != 0)
}

// find gives the slot of the packet's flow, or an empty one, with its hash set, for it; nil when there are too many flows.
func (c *coalescer) find(pkt []byte, transport int, kind mergeKind) *flowSlot {
	if c.seed == 0 {
		c.seed = rand.Uint64() | 1
	}
	hash := flowHash(c.seed, pkt, transport, kind)
	for at := hash; ; at++ {
		slot := &c.table[at%flowSlots]
		if slot.run == 0 {
			if c.flows == coalescerFlows {
				return nil
			}
			slot.hash = hash
			return slot
		}
		if slot.hash == hash && sameFlow(c.pkts[c.run[slot.run-1].first], pkt, transport) {
			return slot
		}
	}
}

// flowHash mixes addresses, ports and protocol. Two multiplications are enough where the table is small and the seed secret.
func flowHash(seed uint64, pkt []byte, transport int, kind mergeKind) uint32 {
	le := binary.LittleEndian
	ports := uint64(le.Uint32(pkt[transport:])) | uint64(kind)<<32
	var h uint64
	if transport == ipv4HeaderLen {
		h = mix(le.Uint64(pkt[12:])^seed, ports^0x9e3779b97f4a7c15)
	} else {
		h = mix(le.Uint64(pkt[8:])^seed, le.Uint64(pkt[16:])^0x9e3779b97f4a7c15)
		h ^= mix(le.Uint64(pkt[24:])^0xd6e8feb86659fd93, le.Uint64(pkt[32:])^seed)
		h = mix(h^ports, seed^0xe7037ed1a0b428db)
	}
	return uint32(h ^ h>>32)
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// sameFlow says whether two packets without options, the second of which has its transport header at transport, are of
// one flow: IP version, protocol, addresses and ports.
func sameFlow(a, b []byte, transport int) bool {
	le := binary.LittleEndian
	if a[0]>>4 != b[0]>>4 {
		return false
	}
	if transport == ipv4HeaderLen {
		return a[9] == b[9] && le.Uint64(a[12:]) == le.Uint64(b[12:]) && le.Uint32(a[20:]) == le.Uint32(b[20:])
	}
	a, b = a[:44], b[:44]
	return a[6] == b[6] && le.Uint64(a[8:]) == le.Uint64(b[8:]) && le.Uint64(a[16:]) == le.Uint64(b[16:]) &&
		le.Uint64(a[24:]) == le.Uint64(b[24:]) && le.Uint64(a[32:]) == le.Uint64(b[32:]) &&
		le.Uint32(a[40:]) == le.Uint32(b[40:])
}

// join appends packet i to r if it continues it. Where it does not, the caller begins another run, which takes the place of
// r as the flow's latest: nothing can pass the packet.
func (c *coalescer) join(r *run, i int16, pkt []byte, transport, header int) bool {
	first := c.pkts[r.first]
	payload := len(pkt) - header
	if header != r.header || payload > r.segment || r.size+payload > maxPacket ||
		!sameNetworkHeader(first, pkt, r) || !sameTransportHeader(first, pkt, r) {
		return false
	}
	if !r.verified && !checksumsRight(first, transport) || !checksumsRight(pkt, transport) {
		return false
	}
	r.verified = true
	if r.count == 1 && transport == ipv4HeaderLen {
		r.fixedID = first[4] == pkt[4] && first[5] == pkt[5]
	}
	c.after[r.last] = i
	r.last = i
	r.count++
	r.size += payload
	r.wire += len(pkt)
	r.open = payload == r.segment
	if r.gso == link.GSOUDPL4 {
		r.open = r.open && r.count < maxUDPSegments
		return true
	}
	r.seq += uint32(payload)
	if pkt[transport+13]&tcpPSH != 0 {
		r.push, r.open = true, false
	}
	return true
}

// sameNetworkHeader says whether the IP header of pkt is what segmenting a packet with the header of first could have
// made: the same version, TOS or traffic class, flow label, TTL or hop limit, and DF; and an IPv4 ID that counts up from
// the first packet's or, where DF is set, is the same in all (RFC 6864: it means nothing then).
func sameNetworkHeader(first, pkt []byte, r *run) bool {
	if r.transport != ipv4HeaderLen {
		return binary.LittleEndian.Uint32(first) == binary.LittleEndian.Uint32(pkt) && first[7] == pkt[7]
	}
	if first[1] != pkt[1] || first[6] != pkt[6] || first[7] != pkt[7] || first[8] != pkt[8] {
		return false
	}
	step := binary.BigEndian.Uint16(pkt[4:]) - binary.BigEndian.Uint16(first[4:])
	if r.count == 1 {
		return step == 1 || step == 0 && first[6]&0x40 != 0
	}
	if r.fixedID {
		return step == 0
	}
	return step == uint16(r.count)
}

// sameTransportHeader says the same about the TCP header: it continues the data, and all but PSH and the checksum, options
// included, is as in the first packet. Of a UDP header there is only the length left, which was looked at.
func sameTransportHeader(first, pkt []byte, r *run) bool {
	if r.gso == link.GSOUDPL4 {
		return true
	}
	le := binary.LittleEndian
	a, b := first[r.transport:r.header], pkt[r.transport:r.header]
	if binary.BigEndian.Uint32(b[4:]) != r.seq ||
		le.Uint32(a[8:]) != le.Uint32(b[8:]) || // acknowledgement
		a[12] != b[12] || (a[13]^b[13])&^tcpPSH != 0 || // length, reserved bits, flags
		le.Uint16(a[14:]) != le.Uint16(b[14:]) || le.Uint16(a[18:]) != le.Uint16(b[18:]) { // window, urgent pointer
		return false
	}
	for a, b = a[tcpHeaderLen:], b[tcpHeaderLen:]; len(a) >= 4 && len(b) >= 4; a, b = a[4:], b[4:] {
		if le.Uint32(a) != le.Uint32(b) {
			return false
		}
	}
	return true
}

// checksumsRight verifies the IPv4 header checksum and that of TCP or UDP, which is there.
func checksumsRight(pkt []byte, transport int) bool {
	proto := pkt[6]
	if transport == ipv4HeaderLen {
		if checksumFold(checksumAdd(0, pkt[:ipv4HeaderLen])) != 0xffff {
			return false
		}
		proto = pkt[9]
	}
	tr := pkt[transport:]
	return checksumFold(checksumAdd(checksumPseudo(pkt, proto, len(tr)), tr)) == 0xffff
}

// Flush gives everything to w, in order, flushes it, and forgets the packets. It returns how many packets, counted as they
// were added, w took and did not take, and the bytes in those that it took. A super-packet that w refuses as such
// (link.ErrNoGSO), or of a kind that it does not take, goes packet by packet.
func (c *coalescer) Flush(w link.InnerWriter) (delivered, failed, bytes int) {
	if c.n == 0 {
		return 0, 0, 0
	}
	used, queued := 0, 0 // parts must stay until w is flushed, so each run has its own
	for k := range c.run[:c.runs] {
		r := &c.run[k]
		if r.count > 1 && link.CanGSO(w, r.gso) {
			parts := c.gather(r, c.parts[used:used])
			saved := r.save(parts[0])
			err := w.Queue(r.merge(parts[0]), parts)
			if err == nil {
				used += len(parts)
				queued++
				delivered += len(parts)
				bytes += r.wire
				continue
			}
			r.restore(parts[0], saved)
			if !errors.Is(err, link.ErrNoGSO) {
				failed += len(parts)
				continue
			}
		}
		for i, n := r.first, r.count; n > 0; i, n = c.after[i], n-1 {
			part := append(c.parts[used:used:used+1], c.pkts[i])
			if w.Queue(link.VNet{}, part) != nil {
				failed++
				continue
			}
			used++
			queued++
			delivered++
			bytes += len(c.pkts[i])
		}
	}
	if queued > 0 {
		// Which ones a writer refuses only now it does not say; each counts as one packet of the average size, unless
		// all were refused.
		late, _ := w.Flush()
		switch {
		case late >= queued:
			failed, delivered, bytes = failed+delivered, 0, 0
		case late > 0:
			bytes -= bytes / delivered * late
			failed, delivered = failed+late, delivered-late
		}
	}
	c.reset()
	return delivered, failed, bytes
}

func (c *coalescer) reset() {
	clear(c.pkts[:c.n])
	clear(c.parts[:c.n])
	if c.flows > 0 {
		clear(c.table[:])
	}
	c.n, c.runs, c.flows, c.barrier = 0, 0, 0, 0
}

// gather appends the parts of the super-packet to parts: the first packet whole, then the others' payloads.
func (c *coalescer) gather(r *run, parts [][]byte) [][]byte {
	i := r.first
	parts = append(parts, c.pkts[i])
	for n := r.count - 1; n > 0; n-- {
		i = c.after[i]
		parts = append(parts, c.pkts[i][r.header:])
	}
	return parts
}

// savedHeader is what merge changes in the first packet.
type savedHeader struct {
	ip        [12]byte // from the start: lengths and, in IPv4, the checksum
	transport [20]byte
}

func (r *run) save(pkt []byte) (s savedHeader) {
	copy(s.ip[:], pkt)
	copy(s.transport[:], pkt[r.transport:r.header])
	return s
}

func (r *run) restore(pkt []byte, s savedHeader) {
	copy(pkt, s.ip[:])
	copy(pkt[r.transport:r.header], s.transport[:])
}

// merge turns the headers of the first packet into those of the super-packet, and gives the offload header to go with it:
// the transport checksum is left as the pseudo header's sum.
func (r *run) merge(pkt []byte) link.VNet {
	length := r.size - r.transport
	proto := uint8(protoTCP)
	if r.gso == link.GSOUDPL4 {
		proto = protoUDP
	}
	if r.transport == ipv4HeaderLen {
		binary.BigEndian.PutUint16(pkt[2:], uint16(r.size))
		clear(pkt[10:12])
		checksumStore(pkt[10:12], checksumAdd(0, pkt[:ipv4HeaderLen]))
	} else {
		binary.BigEndian.PutUint16(pkt[4:], uint16(r.size-ipv6HeaderLen))
	}
	tr := pkt[r.transport:]
	field := 16
	if r.gso == link.GSOUDPL4 {
		field = 6
		binary.BigEndian.PutUint16(tr[4:], uint16(length))
	} else if r.push {
		tr[13] |= tcpPSH
	}
	binary.LittleEndian.PutUint16(tr[field:], checksumFold(checksumPseudo(pkt, proto, length)))
	return link.VNet{
		NeedsCsum: true, GSO: r.gso, GSOSize: uint16(r.segment), HdrLen: uint16(r.header),
		CsumStart: uint16(r.transport), CsumOffset: uint16(field),
	}
}
