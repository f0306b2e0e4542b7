package offload

import "fmt"

// Direction says which way packets pass through an engine.
type Direction uint8

// The two directions.
const (
	Seal Direction = iota // clear to wire: encrypt, then authenticate
	Open                  // wire to clear: verify, then decrypt
)

var directions = [...]string{Seal: "seal", Open: "open"}

// String is "seal" or "open".
func (d Direction) String() string {
	if int(d) < len(directions) {
		return directions[d]
	}
	return fmt.Sprintf("direction(%d)", uint8(d))
}

// Status is how one job ended.
type Status uint8

// All of them. Every status but Pending is final.
const (
	Pending     Status = iota
	OK                 // the packet is complete
	BadICV             // opening only: the packet is not authentic; its content must not be used
	BadLength          // no packet of this transform can have this length
	EngineError        // the engine could not do it; the content must not be used
)

var statuses = [...]struct{ name, text string }{
	Pending:     {"pending", "not finished yet"},
	OK:          {"ok", "done"},
	BadICV:      {"bad-icv", "the integrity check value does not match"},
	BadLength:   {"bad-length", "shorter than the transform's smallest packet, or not a whole number of blocks"},
	EngineError: {"engine-error", "the engine failed, or the session is closed, foreign or of the other direction"},
}

// Statuses lists every status, Pending first.
func Statuses() []Status {
	s := make([]Status, len(statuses))
	for i := range s {
		s[i] = Status(i)
	}
	return s
}

// String is the short name, fit for a metric's label: "ok", "bad-icv".
func (s Status) String() string {
	if int(s) < len(statuses) {
		return statuses[s].name
	}
	return fmt.Sprintf("status(%d)", uint8(s))
}

// Text says in words what the status means.
func (s Status) Text() string {
	if int(s) < len(statuses) {
		return statuses[s].text
	}
	return s.String()
}

// Job is one ESP packet to seal or to open in place. ESP starts at the SPI and ends with the ICV, so len(ESP) is the
// packet's length on the wire in both directions; nothing beyond len(ESP) is touched.
//
// Seal: ESP holds SPI | sequence | IV | payload, padding, pad length, next header | room for the ICV, and the caller has
// written all but the ICV. After OK the packet is complete. SPI, sequence number and IV are as the caller wrote them.
//
// Open: ESP holds the packet as received. After OK the plaintext, with its padding, lies between IV and ICV. After
// any other status what follows the IV is unspecified: it may still be as received, or wiped. SPI, sequence number and IV
// are never changed.
//
// SeqHi is the high half of a 64-bit extended sequence number (RFC 4303 section 2.2.1): authenticated, never sent. It is
// read only if the session was made with Keys.ESN.
//
// Status is set by the engine; what it was before does not matter.
type Job struct {
	Session Session
	ESP     []byte
	SeqHi   uint32
	Status  Status
}

// Burst is a list of jobs of one direction, handed over and given back as a whole. The sessions, all of one engine, may be
// mixed. Tag belongs to the caller: engines neither read nor change it.
type Burst struct {
	Dir  Direction
	Jobs []Job
	Tag  int
}

// Fail gives every job of the burst the status EngineError: what an engine does with a burst it cannot work on.
func (b *Burst) Fail() {
	for i := range b.Jobs {
		b.Jobs[i].Status = EngineError
	}
}
