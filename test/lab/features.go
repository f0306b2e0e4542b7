package lab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// WireFeatures are the device features that let a packet larger than the MTU pass, by their kernel names. With all
// of them off, what crosses a veth is what would cross a cable: frames of the MTU at most.
var WireFeatures = []string{
	"tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation",
	"tx-generic-segmentation", "tx-udp-segmentation", "tx-gso-list",
	"rx-gro", "rx-gro-hw", "rx-gro-list", "rx-udp-gro-forwarding", "rx-lro",
}

// ErrFeature is returned when a device keeps a feature on that was to be switched off, or the other way round.
var ErrFeature = errors.New("the device did not take the feature")

// Features reads the device features of an interface by kernel name ("tx-udp-segmentation": true).
func (n *Namespace) Features(device string) (map[string]bool, error) {
	d, err := n.openFeatures(device)
	if err != nil {
		return nil, err
	}
	defer d.close()
	on, err := d.get()
	if err != nil {
		return nil, err
	}
	features := make(map[string]bool, len(d.names))
	for i, name := range d.names {
		features[name] = on[i]
	}
	return features, nil
}

// SetFeatures switches features of an interface on or off and reads them back. Names that this kernel does not have are passed
// over when off is asked for, for then they are off; asking for on is ErrFeature, as is a feature that did not change.
func (n *Namespace) SetFeatures(device string, on bool, names ...string) error {
	d, err := n.openFeatures(device)
	if err != nil {
		return err
	}
	defer d.close()
	want := make(map[int]bool)
	for _, name := range names {
		switch i := slices.Index(d.names, name); {
		case i >= 0:
			want[i] = on
		case on:
			return fmt.Errorf("%w: this kernel knows no %q (%s in %s)", ErrFeature, name, device, n.name)
		}
	}
	if err := d.set(want); err != nil {
		return err
	}
	now, err := d.get()
	if err != nil {
		return err
	}
	var kept []string
	for i := range want {
		if now[i] != on {
			kept = append(kept, d.names[i])
		}
	}
	if len(kept) > 0 {
		slices.Sort(kept)
		return fmt.Errorf("%w: %s in %s: wanted %s: %s", ErrFeature, device, n.name, map[bool]string{true: "on", false: "off"}[on], strings.Join(kept, ", "))
	}
	return nil
}

// featureDevice speaks the ethtool ioctl about one interface.
type featureDevice struct {
	fd    int
	where string
	name  [unix.IFNAMSIZ]byte
	names []string // by feature bit; a bit without a feature has an empty name
}

func (n *Namespace) openFeatures(device string) (*featureDevice, error) {
	d := &featureDevice{where: device + " in " + n.name}
	if len(device) >= len(d.name) {
		return nil, fmt.Errorf("interface name %q is longer than %d bytes", device, len(d.name)-1)
	}
	copy(d.name[:], device)
	var err error
	if d.fd, err = n.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0); err != nil {
		return nil, err
	}
	if err := d.readNames(); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func (d *featureDevice) close() { unix.Close(d.fd) }

// words is the number of 32-bit words that hold the feature bits.
func (d *featureDevice) words() int { return (len(d.names) + 31) / 32 }

// ioctl passes an ethtool command; data starts with the command number.
func (d *featureDevice) ioctl(data []uint32) error {
	// struct ifreq with its pointer member. The union behind the name is 16 bytes on 32-bit and 24 on 64-bit machines.
	ifr := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [24 - unsafe.Sizeof(uintptr(0))]byte
	}{name: d.name, data: unsafe.Pointer(unsafe.SliceData(data))}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr))); errno != 0 {
		return fmt.Errorf("features of %s: %w", d.where, os.NewSyscallError("ethtool ioctl", errno))
	}
	return nil
}

// readNames asks for the string set of the features (ETH_SS_FEATURES).
func (d *featureDevice) readNames() error {
	const (
		ethSSFeatures = 4
		stringLen     = 32 // ETH_GSTRING_LEN
	)
	// struct ethtool_sset_info: cmd, reserved, sset_mask (64 bits), and a length per bit of the mask.
	info := make([]uint32, 5)
	info[0] = unix.ETHTOOL_GSSET_INFO
	var mask [8]byte
	binary.NativeEndian.PutUint64(mask[:], 1<<ethSSFeatures)
	info[2], info[3] = binary.NativeEndian.Uint32(mask[:4]), binary.NativeEndian.Uint32(mask[4:])
	if err := d.ioctl(info); err != nil {
		return err
	}
	count := int(info[4])
	// struct ethtool_gstrings: cmd, string_set, len, and the strings.
	strs := make([]uint32, 3+count*stringLen/4)
	strs[0], strs[1], strs[2] = unix.ETHTOOL_GSTRINGS, ethSSFeatures, uint32(count)
	if err := d.ioctl(strs); err != nil {
		return err
	}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&strs[3:][0])), count*stringLen)
	for i := range count {
		s := raw[i*stringLen : (i+1)*stringLen]
		if end := bytes.IndexByte(s, 0); end >= 0 {
			s = s[:end]
		}
		d.names = append(d.names, string(s))
	}
	return nil
}

// get reads which features are on: struct ethtool_gfeatures has available, requested, active and never-changed per word.
func (d *featureDevice) get() ([]bool, error) {
	data := make([]uint32, 2+4*d.words())
	data[0], data[1] = unix.ETHTOOL_GFEATURES, uint32(d.words())
	if err := d.ioctl(data); err != nil {
		return nil, err
	}
	on := make([]bool, len(d.names))
	for i := range on {
		on[i] = data[2+4*(i/32)+2]>>(i%32)&1 == 1
	}
	return on, nil
}

// set asks for the features in want: struct ethtool_sfeatures has valid and requested per word. Features that the
// device cannot change make the kernel refuse the whole call, so those that already are as wanted are left out.
func (d *featureDevice) set(want map[int]bool) error {
	now, err := d.get()
	if err != nil {
		return err
	}
	data := make([]uint32, 2+2*d.words())
	data[0], data[1] = unix.ETHTOOL_SFEATURES, uint32(d.words())
	for i, on := range want {
		if now[i] == on {
			continue
		}
		data[2+2*(i/32)] |= 1 << (i % 32)
		if on {
			data[2+2*(i/32)+1] |= 1 << (i % 32)
		}
	}
	return d.ioctl(data)
}
