package xfrm

// DecodeSA reads the body of MsgNewSA or MsgUpdSA. Errors are *Error.
func DecodeSA(body []byte) (SA, error) { return Decode[SA](Native, body) }

// DecodeSAID reads the body of MsgDelSA or MsgGetSA. Errors are *Error.
func DecodeSAID(body []byte) (SAID, error) { return Decode[SAID](Native, body) }

// DecodeAllocSPI reads the body of MsgAllocSPI. Errors are *Error.
func DecodeAllocSPI(body []byte) (AllocSPI, error) { return Decode[AllocSPI](Native, body) }

// DecodeExpire reads the body of MsgExpire. Errors are *Error.
func DecodeExpire(body []byte) (Expire, error) { return Decode[Expire](Native, body) }

// DecodePolicy reads the body of MsgNewPolicy or MsgUpdPolicy. Errors are *Error.
func DecodePolicy(body []byte) (Policy, error) { return Decode[Policy](Native, body) }

// DecodePolicyID reads the body of MsgDelPolicy or MsgGetPolicy. Errors are *Error.
func DecodePolicyID(body []byte) (PolicyID, error) { return Decode[PolicyID](Native, body) }

// DecodePolicyExpire reads the body of MsgPolExpire. Errors are *Error.
func DecodePolicyExpire(body []byte) (PolicyExpire, error) { return Decode[PolicyExpire](Native, body) }

// DecodeAcquire reads the body of MsgAcquire. Errors are *Error.
func DecodeAcquire(body []byte) (Acquire, error) { return Decode[Acquire](Native, body) }

// DecodeAE reads the body of MsgNewAE or MsgGetAE. Errors are *Error.
func DecodeAE(body []byte) (AE, error) { return Decode[AE](Native, body) }

// DecodeMapping reads the body of MsgMapping. Errors are *Error.
func DecodeMapping(body []byte) (Mapping, error) { return Decode[Mapping](Native, body) }

// DecodeMigrate reads the body of MsgMigrate. Errors are *Error.
func DecodeMigrate(body []byte) (Migrate, error) { return Decode[Migrate](Native, body) }

// DecodeFlush reads the body of MsgFlushSA. Errors are *Error.
func DecodeFlush(body []byte) (Flush, error) { return Decode[Flush](Native, body) }

// DecodeFlushPolicy reads the body of MsgFlushPolicy. Errors are *Error.
func DecodeFlushPolicy(body []byte) (FlushPolicy, error) { return Decode[FlushPolicy](Native, body) }

// DecodeDump reads the body of MsgGetSA or MsgGetPolicy with NLM_F_DUMP. Errors are *Error.
func DecodeDump(body []byte) (Dump, error) { return Decode[Dump](Native, body) }

// DecodeReport reads the body of MsgReport. Errors are *Error.
func DecodeReport(body []byte) (Report, error) { return Decode[Report](Native, body) }

// DecodeDefault reads the body of MsgSetDefault or MsgGetDefault. Errors are *Error.
func DecodeDefault(body []byte) (Default, error) { return Decode[Default](Native, body) }

// DecodeSADInfo reads the body of MsgNewSADInfo or MsgGetSADInfo. Errors are *Error.
func DecodeSADInfo(body []byte) (SADInfo, error) { return Decode[SADInfo](Native, body) }

// DecodeSPDInfo reads the body of MsgNewSPDInfo or MsgGetSPDInfo. Errors are *Error.
func DecodeSPDInfo(body []byte) (SPDInfo, error) { return Decode[SPDInfo](Native, body) }

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *SA) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *SAID) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *AllocSPI) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *Expire) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *Policy) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *PolicyID) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *PolicyExpire) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *Acquire) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *AE) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *Mapping) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *Migrate) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *Flush) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *FlushPolicy) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *Dump) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *Report) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *Default) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *SADInfo) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}

// Append appends a whole message, header and all, padded to a multiple of 4 bytes.
func (m *SPDInfo) Append(dst []byte, typ, flags uint16, seq, pid uint32) []byte {
	return Native.Append(dst, m, typ, flags, seq, pid)
}
