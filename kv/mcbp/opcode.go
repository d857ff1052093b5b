package mcbp

import "fmt"

// Opcode identifies the operation of a frame.
type Opcode uint8

// The opcodes for documents and connections. The forms with Q are quiet: the usual outcome is not answered.
const (
	OpGet            Opcode = 0x00
	OpSet            Opcode = 0x01
	OpAdd            Opcode = 0x02
	OpReplace        Opcode = 0x03
	OpDelete         Opcode = 0x04
	OpIncrement      Opcode = 0x05
	OpDecrement      Opcode = 0x06
	OpQuit           Opcode = 0x07
	OpFlush          Opcode = 0x08
	OpGetQ           Opcode = 0x09
	OpNoop           Opcode = 0x0a
	OpVersion        Opcode = 0x0b
	OpGetK           Opcode = 0x0c
	OpGetKQ          Opcode = 0x0d
	OpAppend         Opcode = 0x0e
	OpPrepend        Opcode = 0x0f
	OpStat           Opcode = 0x10
	OpSetQ           Opcode = 0x11
	OpAddQ           Opcode = 0x12
	OpReplaceQ       Opcode = 0x13
	OpDeleteQ        Opcode = 0x14
	OpIncrementQ     Opcode = 0x15
	OpDecrementQ     Opcode = 0x16
	OpQuitQ          Opcode = 0x17
	OpFlushQ         Opcode = 0x18
	OpAppendQ        Opcode = 0x19
	OpPrependQ       Opcode = 0x1a
	OpVerbosity      Opcode = 0x1b
	OpTouch          Opcode = 0x1c
	OpGAT            Opcode = 0x1d
	OpGATQ           Opcode = 0x1e
	OpHello          Opcode = 0x1f
	OpSASLList       Opcode = 0x20
	OpSASLAuth       Opcode = 0x21
	OpSASLStep       Opcode = 0x22
	OpGetAllVBSeqnos Opcode = 0x48
)

// The opcodes of DCP.
const (
	OpDCPOpen           Opcode = 0x50
	OpDCPAddStream      Opcode = 0x51
	OpDCPCloseStream    Opcode = 0x52
	OpDCPStreamReq      Opcode = 0x53
	OpDCPFailoverLog    Opcode = 0x54
	OpDCPStreamEnd      Opcode = 0x55
	OpDCPSnapshotMarker Opcode = 0x56
	OpDCPMutation       Opcode = 0x57
	OpDCPDeletion       Opcode = 0x58
	OpDCPExpiration     Opcode = 0x59
	OpDCPNoop           Opcode = 0x5c
	OpDCPBufferAck      Opcode = 0x5d
	OpDCPControl        Opcode = 0x5e
	OpDCPSystemEvent    Opcode = 0x5f
	OpDCPSeqnoAdvanced  Opcode = 0x64
	OpDCPOSOSnapshot    Opcode = 0x65
)

// The opcodes that KV engines have added to the protocol. Some are defined only so that their refusal has a name.
const (
	OpGetReplica             Opcode = 0x83
	OpSelectBucket           Opcode = 0x89
	OpObserveSeqno           Opcode = 0x91
	OpObserve                Opcode = 0x92
	OpGetLocked              Opcode = 0x94
	OpUnlockKey              Opcode = 0x95
	OpGetMeta                Opcode = 0xa0
	OpSetWithMeta            Opcode = 0xa2
	OpAddWithMeta            Opcode = 0xa4
	OpDeleteWithMeta         Opcode = 0xa8
	OpGetClusterConfig       Opcode = 0xb5
	OpGetRandomKey           Opcode = 0xb6
	OpGetCollectionsManifest Opcode = 0xba
	OpGetCollectionID        Opcode = 0xbb
	OpGetScopeID             Opcode = 0xbc
	OpSubdocGet              Opcode = 0xc5
	OpSubdocMultiLookup      Opcode = 0xd0
	OpSubdocMultiMutation    Opcode = 0xd1
	OpGetErrorMap            Opcode = 0xfe
)

// String returns the name of the opcode in the protocol.
func (o Opcode) String() string {
	if name := o.baseName(); name != "" {
		return name
	}
	if name := o.dcpName(); name != "" {
		return name
	}
	if name := o.addedName(); name != "" {
		return name
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}

// baseName returns the name of an opcode for documents and connections, or "".
func (o Opcode) baseName() string {
	names := [...]string{
		OpGet:            "GET",
		OpSet:            "SET",
		OpAdd:            "ADD",
		OpReplace:        "REPLACE",
		OpDelete:         "DELETE",
		OpIncrement:      "INCREMENT",
		OpDecrement:      "DECREMENT",
		OpQuit:           "QUIT",
		OpFlush:          "FLUSH",
		OpGetQ:           "GETQ",
		OpNoop:           "NOOP",
		OpVersion:        "VERSION",
		OpGetK:           "GETK",
		OpGetKQ:          "GETKQ",
		OpAppend:         "APPEND",
		OpPrepend:        "PREPEND",
		OpStat:           "STAT",
		OpSetQ:           "SETQ",
		OpAddQ:           "ADDQ",
		OpReplaceQ:       "REPLACEQ",
		OpDeleteQ:        "DELETEQ",
		OpIncrementQ:     "INCREMENTQ",
		OpDecrementQ:     "DECREMENTQ",
		OpQuitQ:          "QUITQ",
		OpFlushQ:         "FLUSHQ",
		OpAppendQ:        "APPENDQ",
		OpPrependQ:       "PREPENDQ",
		OpVerbosity:      "VERBOSITY",
		OpTouch:          "TOUCH",
		OpGAT:            "GAT",
		OpGATQ:           "GATQ",
		OpHello:          "HELLO",
		OpSASLList:       "SASL_LIST",
		OpSASLAuth:       "SASL_AUTH",
		OpSASLStep:       "SASL_STEP",
		OpGetAllVBSeqnos: "GET_ALL_VB_SEQNOS",
	}
	if int(o) < len(names) {
		return names[o]
	}
	return ""
}

// dcpName returns the name of an opcode of DCP, or "".
func (o Opcode) dcpName() string {
	names := [...]string{
		OpDCPOpen:           "DCP_OPEN",
		OpDCPAddStream:      "DCP_ADD_STREAM",
		OpDCPCloseStream:    "DCP_CLOSE_STREAM",
		OpDCPStreamReq:      "DCP_STREAM_REQ",
		OpDCPFailoverLog:    "DCP_FAILOVER_LOG",
		OpDCPStreamEnd:      "DCP_STREAM_END",
		OpDCPSnapshotMarker: "DCP_SNAPSHOT_MARKER",
		OpDCPMutation:       "DCP_MUTATION",
		OpDCPDeletion:       "DCP_DELETION",
		OpDCPExpiration:     "DCP_EXPIRATION",
		OpDCPNoop:           "DCP_NOOP",
		OpDCPBufferAck:      "DCP_BUFFER_ACK",
		OpDCPControl:        "DCP_CONTROL",
		OpDCPSystemEvent:    "DCP_SYSTEM_EVENT",
		OpDCPSeqnoAdvanced:  "DCP_SEQNO_ADVANCED",
		OpDCPOSOSnapshot:    "DCP_OSO_SNAPSHOT",
	}
	if int(o) < len(names) {
		return names[o]
	}
	return ""
}

// addedName returns the name of an opcode that KV engines have added, or "".
func (o Opcode) addedName() string {
	names := [...]string{
		OpGetReplica:             "GET_REPLICA",
		OpSelectBucket:           "SELECT_BUCKET",
		OpObserveSeqno:           "OBSERVE_SEQNO",
		OpObserve:                "OBSERVE",
		OpGetLocked:              "GET_LOCKED",
		OpUnlockKey:              "UNLOCK_KEY",
		OpGetMeta:                "GET_META",
		OpSetWithMeta:            "SET_WITH_META",
		OpAddWithMeta:            "ADD_WITH_META",
		OpDeleteWithMeta:         "DELETE_WITH_META",
		OpGetClusterConfig:       "GET_CLUSTER_CONFIG",
		OpGetRandomKey:           "GET_RANDOM_KEY",
		OpGetCollectionsManifest: "GET_COLLECTIONS_MANIFEST",
		OpGetCollectionID:        "GET_COLLECTION_ID",
		OpGetScopeID:             "GET_SCOPE_ID",
		OpSubdocGet:              "SUBDOC_GET",
		OpSubdocMultiLookup:      "SUBDOC_MULTI_LOOKUP",
		OpSubdocMultiMutation:    "SUBDOC_MULTI_MUTATION",
		OpGetErrorMap:            "GET_ERROR_MAP",
	}
	if int(o) < len(names) {
		return names[o]
	}
	return ""
}
