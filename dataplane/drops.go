package dataplane

// Cause is why a packet was dropped. Every packet that enters a lane leaves it or is counted under exactly one cause.
type Cause uint8

// The causes, in the order in which a packet can meet them: first outbound, then inbound.
const (
	// Outbound: from the TUN to the wire.
	CauseInnerMalformed Cause = iota
	CauseLinkLocal
	CauseNoPolicy
	CausePolicyDiscard
	CauseBypass
	CauseShouldBeProtected
	CauseNoOutboundSA
	CauseHoldFull
	CauseHoldTimedOut
	CauseHoldPolicyGone
	CauseNoLink
	CauseLaneBusy
	CauseExpired
	CauseTransportAddress
	CauseTransportFragment
	CauseTransportHeader
	CauseTooBig
	CauseSeqExhausted
	CauseSeqNotReserved
	CauseEngineError
	CauseUnreachable
	CauseQueueFull
	CauseSendFailed
	CauseClosing

	// Inbound: from the wire to the TUN.
	CauseKeepalive
	CauseIKE
	CauseRunt
	CauseReservedSPI
	CauseNoState
	CauseEncapMismatch
	CauseDuplicate
	CauseTooOld
	CauseNotMarked
	CauseBadLength
	CauseIntegrityFailed
	CauseBadPad
	CauseDummy
	CauseBadNextHeader
	CauseDecapMalformed
	CausePolicyMismatch
	CauseECNDropped
	CauseDeliverFailed

	// NumCauses is the number of causes.
	NumCauses int = iota
)

// causes is the one table of names (for metrics and JSON) and texts (for people).
var causes = [NumCauses]struct{ name, text string }{
	CauseInnerMalformed:    {"inner-malformed", "a packet from the TUN whose IP header or offload header is wrong"},
	CauseLinkLocal:         {"link-local", "one of the host's own messages to its neighbours or groups, which are never forwarded (RFC 4291 2.5.6)"},
	CauseNoPolicy:          {"no-policy", "no outbound policy selects the packet (RFC 4301 4.4.1: the default is to discard)"},
	CausePolicyDiscard:     {"policy-discard", "a policy says DISCARD"},
	CauseBypass:            {"bypass", "a policy says BYPASS, but the packet was routed into the TUN, from where no clear way leads out"},
	CauseShouldBeProtected: {"should-be-protected", "clear traffic that a policy says must arrive protected"},
	CauseNoOutboundSA:      {"no-outbound-sa", "a policy says PROTECT, but there is no SA to do it with"},
	CauseHoldFull:          {"hold-full", "it had to wait for an SA, and as many wait already as may: 64 packets or 128 KB of a policy, 1024 in all"},
	CauseHoldTimedOut:      {"hold-timed-out", "it has waited for an SA as long as packets may, and none was made"},
	CauseHoldPolicyGone:    {"hold-policy-gone", "the policy for whose SA it waited has been removed, and no other selects it"},
	CauseNoLink:            {"no-link", "the SA's outer link is not there, or has been taken away"},
	CauseLaneBusy:          {"lane-busy", "the SA is served by another lane"},
	CauseExpired:           {"state-expired", "the SA has passed its hard lifetime"},
	CauseTransportAddress:  {"transport-address", "an SA in transport mode carries what goes from its own source to its own destination, and nothing else (RFC 4303 3.1.1)"},
	CauseTransportFragment: {"transport-fragment", "an SA in transport mode carries whole datagrams, and this is a fragment (RFC 4303 3.1.1)"},
	CauseTransportHeader:   {"transport-header", "in transport mode, an IPv4 option or an IPv6 header would have to stand before ESP, where the gateway cannot put one"},
	CauseTooBig:            {"too-big", "larger than the path carries; a packet-too-big message was sent inside where one may be"},
	CauseSeqExhausted:      {"seq-cycled", "the SA's sequence numbers are used up (RFC 4303 3.3.3); rekey, or use ESN"},
	CauseSeqNotReserved:    {"seq-not-reserved", "the disk has not yet confirmed further sequence numbers"},
	CauseEngineError:       {"engine-error", "the engine could not process the packet"},
	CauseUnreachable:       {"unreachable", "no way leads to the outer destination, or nobody is there"},
	CauseQueueFull:         {"queue-full", "the device's queue or the kernel's memory is full"},
	CauseSendFailed:        {"send-failed", "the kernel refused to send the ESP packet"},
	CauseClosing:           {"closing", "in flight when the gateway stopped, or when its outer link was taken away"},
	CauseKeepalive:         {"keepalive", "a NAT keepalive (RFC 3948 2.3), which has done its work by arriving"},
	CauseIKE:               {"ike", "an IKE message (non-ESP marker, RFC 3948 2.2) on a port without an IKE daemon"},
	CauseRunt:              {"runt", "too short to be an ESP packet"},
	CauseReservedSPI:       {"reserved-spi", "an SPI below 256 (RFC 4303 2.1)"},
	CauseNoState:           {"no-state", "no SA has this SPI"},
	CauseEncapMismatch:     {"encap-mismatch", "the SA is there, but for another encapsulation or address family"},
	CauseDuplicate:         {"duplicate", "this sequence number was received before (RFC 4303 3.4.3)"},
	CauseTooOld:            {"too-old", "the sequence number lies before the replay window (RFC 4303 3.4.3)"},
	CauseNotMarked:         {"seq-not-marked", "the disk has not yet confirmed a mark beyond this number, without which the packet could be replayed after a restart"},
	CauseBadLength:         {"bad-length", "the ciphertext is not a whole number of blocks"},
	CauseIntegrityFailed:   {"integrity-failed", "the ICV is wrong (RFC 4303 3.4.4)"},
	CauseBadPad:            {"bad-pad", "the padding is not 1, 2, 3, … (RFC 4303 2.4)"},
	CauseDummy:             {"dummy", "a dummy packet (next header 59, RFC 4303 2.6)"},
	CauseBadNextHeader:     {"bad-next-header", "the next header is not that of an IP packet of the SA's mode"},
	CauseDecapMalformed:    {"decap-malformed", "the decapsulated packet is not a well-formed IP packet"},
	CausePolicyMismatch:    {"policy-mismatch", "the decapsulated packet does not match a policy of its own SA (RFC 4301 5.2)"},
	CauseECNDropped:        {"ecn-dropped", "congestion was marked on a packet that cannot carry the mark (RFC 6040 4.2)"},
	CauseDeliverFailed:     {"deliver-failed", "the TUN refused the packet"},
}

// String gives the cause's short name, as metrics and JSON have it.
func (c Cause) String() string {
	if int(c) < NumCauses {
		return causes[c].name
	}
	return "unknown"
}

// Text says in a sentence what the cause means.
func (c Cause) Text() string {
	if int(c) < NumCauses {
		return causes[c].text
	}
	return "unknown"
}

// Causes lists every cause in table order.
func Causes() []Cause {
	all := make([]Cause, NumCauses)
	for i := range all {
		all[i] = Cause(i)
	}
	return all
}
