package client

import (
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// Error is what a manager or indexer answers when it refuses: status, code, detail (RFC 9457).
type Error = wire.Problem

// Reason is why a manager is not ready.
type Reason = wire.Reason

// Bodies of the calls: package v1 has them.
type (
	Availability        = v1.Availability
	BucketSettings      = v1.BucketSettings
	BucketSettingsReply = v1.BucketSettingsReply
	BucketStatus        = v1.BucketStatus
	BucketStreams       = v1.BucketStreams
	BuildRequest        = v1.BuildRequest
	Change              = v1.Change
	Condition           = v1.Condition
	CopyPlace           = v1.CopyPlace
	CountReply          = v1.CountReply
	CreateRequest       = v1.CreateRequest
	FaultSample         = v1.FaultSample
	FormatReply         = v1.FormatReply
	IndexFaults         = v1.IndexFaults
	IndexInfo           = v1.IndexInfo
	IndexList           = v1.IndexList
	IndexLoss           = v1.IndexLoss
	IndexStats          = v1.IndexStats
	IndexSummary        = v1.IndexSummary
	IndexTopology       = v1.IndexTopology
	IndexerRemoval      = v1.IndexerRemoval
	IndexerStats        = v1.IndexerStats
	IndexerStatus       = v1.IndexerStatus
	JoinRequest         = v1.JoinRequest
	KVTrouble           = v1.KVTrouble
	LackingIndex        = v1.LackingIndex
	LimitsChange        = v1.LimitsChange
	LogChange           = v1.LogChange
	LogComponent        = v1.LogComponent
	Logging             = v1.Logging
	ManagerStatus       = v1.ManagerStatus
	MemberReply         = v1.MemberReply
	Orphan              = v1.Orphan
	Participant         = v1.Participant
	PatchRequest        = v1.PatchRequest
	Place               = v1.Place
	PlacedCopy          = v1.PlacedCopy
	ProjectorStatus     = v1.ProjectorStatus
	Range               = v1.Range
	RebalanceInfo       = v1.RebalanceInfo
	RebalanceList       = v1.RebalanceList
	RebalanceMove       = v1.RebalanceMove
	RebalanceReply      = v1.RebalanceReply
	RebalanceRequest    = v1.RebalanceRequest
	RestoreReply        = v1.RestoreReply
	Restored            = v1.Restored
	RollbackInfo        = v1.RollbackInfo
	RollbackList        = v1.RollbackList
	Row                 = v1.Row
	RunningScan         = v1.RunningScan
	RunningScans        = v1.RunningScans
	RunningSplit        = v1.RunningSplit
	ScanAsked           = v1.ScanAsked
	ScanEnd             = v1.ScanEnd
	ScanExplain         = v1.ScanExplain
	ScanMore            = v1.ScanMore
	ScanPart            = v1.ScanPart
	ScanRequest         = v1.ScanRequest
	ScanRoute           = v1.ScanRoute
	ScanSeen            = v1.ScanSeen
	ScanTimes           = v1.ScanTimes
	ScanTimestamp       = v1.ScanTimestamp
	SlowFrom            = v1.SlowFrom
	SlowFromReply       = v1.SlowFromReply
	SlowFromRequest     = v1.SlowFromRequest
	SlowScan            = v1.SlowScan
	SlowScans           = v1.SlowScans
	SplitInfo           = v1.SplitInfo
	StatementReply      = v1.StatementReply
	StatementRequest    = v1.StatementRequest
	StatementResult     = v1.StatementResult
	Stats               = v1.Stats
	Status              = v1.Status
	StreamInfo          = v1.StreamInfo
	StreamList          = v1.StreamList
	StuckVBucket        = v1.StuckVBucket
	Timestamps          = v1.Timestamps
	Token               = v1.Token
	TokenInfo           = v1.TokenInfo
	TokenList           = v1.TokenList
	TokenRequest        = v1.TokenRequest
	TopologyList        = v1.TopologyList
	UnheardIndexer      = v1.UnheardIndexer
	UserInfo            = v1.UserInfo
	UserList            = v1.UserList
	UserRequest         = v1.UserRequest
	VBucketPosition     = v1.VBucketPosition
	VectorInfo          = v1.VectorInfo
	WatchBackfill       = v1.WatchBackfill
	WatchBucket         = v1.WatchBucket
	WatchChange         = v1.WatchChange
	WatchEnd            = v1.WatchEnd
	WatchLeader         = v1.WatchLeader
	WatchRollback       = v1.WatchRollback
	WatchSnapshot       = v1.WatchSnapshot
	WatchStability      = v1.WatchStability
	WatchState          = v1.WatchState
	WhoAmI              = v1.WhoAmI
)
