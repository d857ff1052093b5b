package mcbp

import "fmt"

// Status is the result in a response.
type Status uint16

// The statuses that this product sends or understands.
const (
	StatusOK                Status = 0x00
	StatusKeyNotFound       Status = 0x01
	StatusKeyExists         Status = 0x02 // STREAM_REQ: a stream of this vbucket exists
	StatusTooBig            Status = 0x03
	StatusInvalid           Status = 0x04
	StatusNotStored         Status = 0x05
	StatusBadDelta          Status = 0x06 // INCREMENT, DECREMENT: the value is not a number
	StatusNotMyVBucket      Status = 0x07 // the body may have the newer cluster config
	StatusNoBucket          Status = 0x08 // no bucket selected on this connection
	StatusLocked            Status = 0x09
	StatusAuthStale         Status = 0x1f
	StatusAuthError         Status = 0x20
	StatusAuthContinue      Status = 0x21
	StatusRange             Status = 0x22
	StatusRollback          Status = 0x23 // STREAM_REQ: value is the seqno to which to roll back
	StatusNoAccess          Status = 0x24
	StatusNotInitialized    Status = 0x25 // the node has no access rules yet
	StatusUnknownFrameInfo  Status = 0x80 // unknown frame extra
	StatusUnknownCommand    Status = 0x81
	StatusNoMemory          Status = 0x82
	StatusNotSupported      Status = 0x83
	StatusInternal          Status = 0x84
	StatusBusy              Status = 0x85
	StatusTemporary         Status = 0x86
	StatusUnknownCollection Status = 0x88
	StatusNoManifest        Status = 0x89 // of collections: none received yet
	StatusManifestAhead     Status = 0x8b // the vbucket has not reached that manifest yet
	StatusUnknownScope      Status = 0x8c
	// A write requires durability: the level is unknown, or impossible here.
	StatusDurabilityInvalid    Status = 0xa0
	StatusDurabilityImpossible Status = 0xa1
)

// statusNames has the names in the protocol.
var statusNames = map[Status]string{
	StatusOK:                   "OK",
	StatusKeyNotFound:          "KEY_NOT_FOUND",
	StatusKeyExists:            "KEY_EXISTS",
	StatusTooBig:               "TOO_BIG",
	StatusInvalid:              "INVALID_ARGUMENTS",
	StatusNotStored:            "NOT_STORED",
	StatusBadDelta:             "DELTA_BADVAL",
	StatusNotMyVBucket:         "NOT_MY_VBUCKET",
	StatusNoBucket:             "NO_BUCKET",
	StatusLocked:               "LOCKED",
	StatusAuthStale:            "AUTH_STALE",
	StatusAuthError:            "AUTH_ERROR",
	StatusAuthContinue:         "AUTH_CONTINUE",
	StatusRange:                "RANGE_ERROR",
	StatusRollback:             "ROLLBACK",
	StatusNoAccess:             "NO_ACCESS",
	StatusNotInitialized:       "NOT_INITIALIZED",
	StatusUnknownFrameInfo:     "UNKNOWN_FRAME_INFO",
	StatusUnknownCommand:       "UNKNOWN_COMMAND",
	StatusNoMemory:             "NO_MEMORY",
	StatusNotSupported:         "NOT_SUPPORTED",
	StatusInternal:             "INTERNAL_ERROR",
	StatusBusy:                 "BUSY",
	StatusTemporary:            "TEMPORARY_FAILURE",
	StatusUnknownCollection:    "UNKNOWN_COLLECTION",
	StatusNoManifest:           "NO_COLLECTIONS_MANIFEST",
	StatusManifestAhead:        "COLLECTIONS_MANIFEST_AHEAD",
	StatusUnknownScope:         "UNKNOWN_SCOPE",
	StatusDurabilityInvalid:    "DURABILITY_INVALID_LEVEL",
	StatusDurabilityImpossible: "DURABILITY_IMPOSSIBLE",
}

// String returns the name in the protocol.
func (s Status) String() string {
	if name, ok := statusNames[s]; ok {
		return name
	}
	return fmt.Sprintf("status %#04x", uint16(s))
}

// Feature is a HELLO feature: what the client asks for and the server grants.
type Feature uint16

// The HELLO features that this product supports or recognizes.
const (
	FeatureTLS            Feature = 0x02
	FeatureTCPNoDelay     Feature = 0x03
	FeatureMutationToken  Feature = 0x04 // SET replies carry {vbuuid, seqno}
	FeatureXattr          Feature = 0x06
	FeatureXerror         Feature = 0x07
	FeatureSelectBucket   Feature = 0x08
	FeatureSnappy         Feature = 0x0a
	FeatureJSON           Feature = 0x0b
	FeatureDuplex         Feature = 0x0c
	FeatureMapNotify      Feature = 0x0d
	FeatureUnordered      Feature = 0x0e
	FeatureTracing        Feature = 0x0f
	FeatureFlexibleFrames Feature = 0x10
	FeatureSyncReplicate  Feature = 0x11
	FeatureCollections    Feature = 0x12
	FeatureKnownConfig    Feature = 0x1d // GET_CLUSTER_CONFIG has the version that the client knows
	FeatureDedupNMVB      Feature = 0x1e // NOT_MY_VBUCKET does not repeat a known config
)

// featureNames has the names in the protocol, in the order of their numbers.
var featureNames = [...]struct {
	feature Feature
	name    string
}{
	{FeatureTLS, "TLS"}, {FeatureTCPNoDelay, "TCP nodelay"}, {FeatureMutationToken, "mutation tokens"},
	{FeatureXattr, "xattrs"}, {FeatureXerror, "xerror"}, {FeatureSelectBucket, "select bucket"},
	{FeatureSnappy, "snappy"}, {FeatureJSON, "JSON"}, {FeatureDuplex, "duplex"},
	{FeatureMapNotify, "map notifications"}, {FeatureUnordered, "unordered execution"}, {FeatureTracing, "tracing"},
	{FeatureFlexibleFrames, "flexible frames"}, {FeatureSyncReplicate, "synchronous replication"},
	{FeatureCollections, "collections"}, {FeatureKnownConfig, "known config"},
	{FeatureDedupNMVB, "deduplicated configs"},
}

// Features returns the features in featureNames.
func Features() []Feature {
	out := make([]Feature, len(featureNames))
	for i, f := range featureNames {
		out[i] = f.feature
	}
	return out
}

// String returns the feature's name.
func (f Feature) String() string {
	for _, n := range featureNames {
		if n.feature == f {
			return n.name
		}
	}
	return fmt.Sprintf("feature %#02x", uint16(f))
}

// Datatype is the set of flags that describe a value.
type Datatype uint8

// The datatype flags. JSON is a hint only: real engines omit it (docs/couchbase.md, "Engines"), so that receivers
// have to inspect the value.
const (
	DatatypeJSON   Datatype = 1
	DatatypeSnappy Datatype = 2
	DatatypeXattr  Datatype = 4
)

// Has reports whether all of the flags are set.
func (d Datatype) Has(flags Datatype) bool { return d&flags == flags }

// EndReason is the reason for which a stream ended.
type EndReason uint32

// The reasons of STREAM_END.
const (
	EndOK             EndReason = 0 // a finite stream reached its end
	EndClosed         EndReason = 1 // closed by the consumer
	EndStateChanged   EndReason = 2 // the vbucket is no longer active there
	EndDisconnected   EndReason = 3
	EndTooSlow        EndReason = 4
	EndBackfillFailed EndReason = 5
	EndRollback       EndReason = 6
	EndFilterEmpty    EndReason = 7
	EndPrivilegeLost  EndReason = 8
)

// String returns the reason in words.
func (r EndReason) String() string {
	names := [...]string{"ok", "closed", "state changed", "disconnected", "too slow", "backfill failed", "rollback",
		"filter empty", "privilege lost"}
	if int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("stream end reason %d", uint32(r))
}

// SnapshotFlags is the type field of a snapshot marker.
type SnapshotFlags uint32

// The snapshot flags.
const (
	SnapshotMemory     SnapshotFlags = 0x01
	SnapshotDisk       SnapshotFlags = 0x02
	SnapshotCheckpoint SnapshotFlags = 0x04
	SnapshotAck        SnapshotFlags = 0x08
	SnapshotHistory    SnapshotFlags = 0x10
)

// OpenFlags is the flags field of DCP_OPEN.
type OpenFlags uint32

// The flags of DCP_OPEN, named from the consumer's view.
const (
	OpenProducer    OpenFlags = 0x01 // the server is to produce
	OpenNotifier    OpenFlags = 0x02
	OpenXattrs      OpenFlags = 0x04 // send extended attributes (needs noop)
	OpenNoValue     OpenFlags = 0x08
	OpenDeleteTimes OpenFlags = 0x20 // 21 byte deletion extras
	// OpenDeletedUserXattrs requests all extended attributes of deletions, not only those of the system.
	OpenDeletedUserXattrs OpenFlags = 0x100
)

// StreamFlags is the flags field of DCP_STREAM_REQ.
type StreamFlags uint32

// The flags of DCP_STREAM_REQ.
const (
	StreamTakeover     StreamFlags = 0x01
	StreamDiskOnly     StreamFlags = 0x02
	StreamToLatest     StreamFlags = 0x04 // end = the high seqno of now
	StreamNoValue      StreamFlags = 0x08
	StreamActiveOnly   StreamFlags = 0x10
	StreamStrictVBUUID StreamFlags = 0x20
	StreamFromLatest   StreamFlags = 0x40
	// StreamIgnorePurged skips the purge check of the rollback decision. An index must never set it: it would miss
	// deletions permanently.
	StreamIgnorePurged StreamFlags = 0x80
)

// VBucketState is the state of a vbucket on a node.
type VBucketState uint32

// The vbucket states. In GET_ALL_VB_SEQNOS VBucketAlive stands for all of the others except dead.
const (
	VBucketAlive   VBucketState = 0
	VBucketActive  VBucketState = 1
	VBucketReplica VBucketState = 2
	VBucketPending VBucketState = 3
	VBucketDead    VBucketState = 4
)

// The keys of DCP_CONTROL that this product sends or understands. The values are decimal numbers or "true" / "false".
const (
	ControlBufferSize    = "connection_buffer_size" // bytes that may be in flight
	ControlEnableNoop    = "enable_noop"
	ControlNoopInterval  = "set_noop_interval" // seconds
	ControlExpiryOpcode  = "enable_expiry_opcode"
	ControlEndOnClose    = "send_stream_end_on_client_close_stream"
	ControlPriority      = "set_priority"
	ControlStreamID      = "enable_stream_id"
	ControlOutOfOrder    = "enable_out_of_order_snapshots"
	ControlCursorDrop    = "supports_cursor_dropping"
	ControlForceCompress = "force_value_compression"
	ControlMaxMarker     = "max_marker_version" // "2.0" or "2.2"
)
