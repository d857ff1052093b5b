package mcbp

import "fmt"

// Opcode says what a frame asks or tells.
type Opcode uint8

// The opcodes for documents and connections. The forms with Q are quiet: they do not answer the usual outcome.
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

// The opcodes that KV engines have added to the protocol. Some are known only to be refused by name.
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
	OpSubdocGet              Opcode = 0xc5
	OpSubdocMultiLookup      Opcode = 0xd0
	OpSubdocMultiMutation    Opcode = 0xd1
	OpGetErrorMap            Opcode = 0xfe
)

// String is the protocol's name of the opcode.
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

// baseName is the name of an opcode for documents and connections, or nothing.
func (o Opcode) baseName() string {
	names := [...]string{
		OpGet - OpGet:            "GET",
		OpSet - OpGet:            "SET",
		OpAdd - OpGet:            "ADD",
		OpReplace - OpGet:        "REPLACE",
		OpDelete - OpGet:         "DELETE",
		OpIncrement - OpGet:      "INCREMENT",
		OpDecrement - OpGet:      "DECREMENT",
		OpQuit - OpGet:           "QUIT",
		OpFlush - OpGet:          "FLUSH",
		OpGetQ - OpGet:           "GETQ",
		OpNoop - OpGet:           "NOOP",
		OpVersion - OpGet:        "VERSION",
		OpGetK - OpGet:           "GETK",
		OpGetKQ - OpGet:          "GETKQ",
		OpAppend - OpGet:         "APPEND",
		OpPrepend - OpGet:        "PREPEND",
		OpStat - OpGet:           "STAT",
		OpSetQ - OpGet:           "SETQ",
		OpAddQ - OpGet:           "ADDQ",
		OpReplaceQ - OpGet:       "REPLACEQ",
		OpDeleteQ - OpGet:        "DELETEQ",
		OpIncrementQ - OpGet:     "INCREMENTQ",
		OpDecrementQ - OpGet:     "DECREMENTQ",
		OpQuitQ - OpGet:          "QUITQ",
		OpFlushQ - OpGet:         "FLUSHQ",
		OpAppendQ - OpGet:        "APPENDQ",
		OpPrependQ - OpGet:       "PREPENDQ",
		OpVerbosity - OpGet:      "VERBOSITY",
		OpTouch - OpGet:          "TOUCH",
		OpGAT - OpGet:            "GAT",
		OpGATQ - OpGet:           "GATQ",
		OpHello - OpGet:          "HELLO",
		OpSASLList - OpGet:       "SASL_LIST",
		OpSASLAuth - OpGet:       "SASL_AUTH",
		OpSASLStep - OpGet:       "SASL_STEP",
		OpGetAllVBSeqnos - OpGet: "GET_ALL_VB_SEQNOS",
	}
	if i := int(o) - int(OpGet); i >= 0 && i < len(names) {
		return names[i]
	}
	return ""
}

// dcpName is the name of an opcode of DCP, or nothing.
func (o Opcode) dcpName() string {
	names := [...]string{
		OpDCPOpen - OpDCPOpen:           "DCP_OPEN",
		OpDCPAddStream - OpDCPOpen:      "DCP_ADD_STREAM",
		OpDCPCloseStream - OpDCPOpen:    "DCP_CLOSE_STREAM",
		OpDCPStreamReq - OpDCPOpen:      "DCP_STREAM_REQ",
		OpDCPFailoverLog - OpDCPOpen:    "DCP_FAILOVER_LOG",
		OpDCPStreamEnd - OpDCPOpen:      "DCP_STREAM_END",
		OpDCPSnapshotMarker - OpDCPOpen: "DCP_SNAPSHOT_MARKER",
		OpDCPMutation - OpDCPOpen:       "DCP_MUTATION",
		OpDCPDeletion - OpDCPOpen:       "DCP_DELETION",
		OpDCPExpiration - OpDCPOpen:     "DCP_EXPIRATION",
		OpDCPNoop - OpDCPOpen:           "DCP_NOOP",
		OpDCPBufferAck - OpDCPOpen:      "DCP_BUFFER_ACK",
		OpDCPControl - OpDCPOpen:        "DCP_CONTROL",
		OpDCPSystemEvent - OpDCPOpen:    "DCP_SYSTEM_EVENT",
		OpDCPSeqnoAdvanced - OpDCPOpen:  "DCP_SEQNO_ADVANCED",
		OpDCPOSOSnapshot - OpDCPOpen:    "DCP_OSO_SNAPSHOT",
	}
	if i := int(o) - int(OpDCPOpen); i >= 0 && i < len(names) {
		return names[i]
	}
	return ""
}

// addedName is the name of an opcode that KV engines have added, or nothing.
func (o Opcode) addedName() string {
	names := [...]string{
		OpGetReplica - OpGetReplica:             "GET_REPLICA",
		OpSelectBucket - OpGetReplica:           "SELECT_BUCKET",
		OpObserveSeqno - OpGetReplica:           "OBSERVE_SEQNO",
		OpObserve - OpGetReplica:                "OBSERVE",
		OpGetLocked - OpGetReplica:              "GET_LOCKED",
		OpUnlockKey - OpGetReplica:              "UNLOCK_KEY",
		OpGetMeta - OpGetReplica:                "GET_META",
		OpSetWithMeta - OpGetReplica:            "SET_WITH_META",
		OpAddWithMeta - OpGetReplica:            "ADD_WITH_META",
		OpDeleteWithMeta - OpGetReplica:         "DELETE_WITH_META",
		OpGetClusterConfig - OpGetReplica:       "GET_CLUSTER_CONFIG",
		OpGetRandomKey - OpGetReplica:           "GET_RANDOM_KEY",
		OpGetCollectionsManifest - OpGetReplica: "GET_COLLECTIONS_MANIFEST",
		OpGetCollectionID - OpGetReplica:        "GET_COLLECTION_ID",
		OpSubdocGet - OpGetReplica:              "SUBDOC_GET",
		OpSubdocMultiLookup - OpGetReplica:      "SUBDOC_MULTI_LOOKUP",
		OpSubdocMultiMutation - OpGetReplica:    "SUBDOC_MULTI_MUTATION",
		OpGetErrorMap - OpGetReplica:            "GET_ERROR_MAP",
	}
	if i := int(o) - int(OpGetReplica); i >= 0 && i < len(names) {
		return names[i]
	}
	return ""
}
