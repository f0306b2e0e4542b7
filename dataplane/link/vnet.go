package link

import "encoding/binary"

// vnetLen is the length of a virtio_net_hdr as a TUN has it unless told otherwise.
const vnetLen = 10

const (
	virtioNeedsCsum = 1
	virtioDataValid = 2
	virtioECN       = 0x80 // beside the GSO type: the super-packet has CWR set
)

// virtioGSO finds the GSOType of a virtio one; gsoTypes where there is none.
var virtioGSO = func() (t [virtioECN]GSOType) {
	for i := range t {
		t[i] = gsoTypes
	}
	for i, row := range gsoTable {
		t[row.virtio] = GSOType(i)
	}
	return t
}()

// decode reads the header, which is in the host's byte order. It reports false for a GSO type that has no GSOType.
func (h *VNet) decode(b *[vnetLen]byte) bool {
	ne := binary.NativeEndian
	gso := virtioGSO[b[1]&^virtioECN]
	*h = VNet{
		NeedsCsum:  b[0]&virtioNeedsCsum != 0,
		DataValid:  b[0]&virtioDataValid != 0,
		GSO:        gso,
		HdrLen:     ne.Uint16(b[2:]),
		GSOSize:    ne.Uint16(b[4:]),
		CsumStart:  ne.Uint16(b[6:]),
		CsumOffset: ne.Uint16(b[8:]),
	}
	return gso < gsoTypes
}

// encode writes the header in the host's byte order.
func (h *VNet) encode(b *[vnetLen]byte) {
	ne := binary.NativeEndian
	b[0] = 0
	if h.NeedsCsum {
		b[0] |= virtioNeedsCsum
	}
	if h.DataValid {
		b[0] |= virtioDataValid
	}
	b[1] = gsoTable[h.GSO].virtio
	ne.PutUint16(b[2:], h.HdrLen)
	ne.PutUint16(b[4:], h.GSOSize)
	ne.PutUint16(b[6:], h.CsumStart)
	ne.PutUint16(b[8:], h.CsumOffset)
}
