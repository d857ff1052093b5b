package statecontext

import (
	"tidemark/index"
)

func (*BootstrapCluster) kind() kind     { return kindBootstrapCluster }
func (*LeaderStarted) kind() kind        { return kindLeaderStarted }
func (*RegisterManager) kind() kind      { return kindRegisterManager }
func (*RegisterProjector) kind() kind    { return kindRegisterProjector }
func (*RegisterIndexer) kind() kind      { return kindRegisterIndexer }
func (*RemoveManager) kind() kind        { return kindRemoveManager }
func (*BeginRemoval) kind() kind         { return kindBeginRemoval }
func (*RemoveProjector) kind() kind      { return kindRemoveProjector }
func (*RemoveIndexer) kind() kind        { return kindRemoveIndexer }
func (*SetBucket) kind() kind            { return kindSetBucket }
func (*BucketGone) kind() kind           { return kindBucketGone }
func (*CreateIndex) kind() kind          { return kindCreateIndex }
func (*BuildIndexes) kind() kind         { return kindBuildIndexes }
func (*DropIndex) kind() kind            { return kindDropIndex }
func (*SetIndexState) kind() kind        { return kindSetIndexState }
func (*AllocateCopies) kind() kind       { return kindAllocateCopies }
func (*ForgetCopies) kind() kind         { return kindForgetCopies }
func (*RemoveIndex) kind() kind          { return kindRemoveIndex }
func (*AdvanceStability) kind() kind     { return kindAdvanceStability }
func (*SetBackfillTimestamp) kind() kind { return kindSetBackfillTimestamp }
func (*SetRollbackStep) kind() kind      { return kindSetRollbackStep }
func (*RollbackLogs) kind() kind         { return kindRollbackLogs }
func (*SetFormatLevel) kind() kind       { return kindSetFormatLevel }
func (*SetLimits) kind() kind            { return kindSetLimits }
func (*RaiseEpoch) kind() kind           { return kindRaiseEpoch }

func (c *BootstrapCluster) append(dst []byte) []byte {
	dst = appendString(dst, c.ClusterID)
	dst = appendUint(dst, c.Epoch)
	dst = appendUint(dst, c.FormatLevel)
	return appendLimits(dst, c.Limits)
}

func (c *LeaderStarted) append(dst []byte) []byte {
	return appendManager(appendUint(dst, c.Term), &c.Manager)
}

func (c *RegisterManager) append(dst []byte) []byte   { return appendManager(dst, &c.Manager) }
func (c *RegisterProjector) append(dst []byte) []byte { return appendProjector(dst, &c.Projector) }
func (c *RegisterIndexer) append(dst []byte) []byte   { return appendIndexer(dst, &c.Indexer) }
func (c *RemoveManager) append(dst []byte) []byte     { return appendString(dst, c.ID) }
func (c *BeginRemoval) append(dst []byte) []byte      { return appendString(dst, c.ID) }

func (c *RemoveProjector) append(dst []byte) []byte {
	return appendString(appendString(dst, string(c.ID)), c.BootID)
}

func (c *RemoveIndexer) append(dst []byte) []byte {
	return appendString(append(dst, byte(c.Node)), c.UUID)
}

func (c *SetBucket) append(dst []byte) []byte {
	dst = appendString(dst, c.Name)
	dst = appendString(dst, c.UUID)
	dst = appendInt(dst, int64(c.VBuckets))
	dst = appendBool(dst, c.Seen != nil)
	if c.Seen != nil {
		dst = appendBool(appendUint(dst, c.Seen.Generation), c.Seen.Gone)
	}
	return dst
}

func decodeSetBucket(d *decoder) *SetBucket {
	c := &SetBucket{Name: d.string(), UUID: d.string(), VBuckets: int(d.int())}
	if d.bool() {
		c.Seen = &SeenBucket{Generation: d.uint(), Gone: d.bool()}
	}
	return c
}

func (c *BucketGone) append(dst []byte) []byte {
	return appendString(appendString(dst, c.Name), c.UUID)
}

func (c *CreateIndex) append(dst []byte) []byte {
	dst = appendDefinition(dst, &c.Definition)
	dst = appendLayout(dst, &c.Layout)
	dst = appendPlacements(dst, c.Placement)
	return appendBool(dst, c.IfNotExists)
}

func (c *BuildIndexes) append(dst []byte) []byte {
	return appendUint(appendUint(appendIDs(dst, c.IDs), c.IfMatch), uint64(c.Rules))
}

func (c *DropIndex) append(dst []byte) []byte {
	return appendUint(appendUint(dst, uint64(c.ID)), c.IfMatch)
}

func (c *SetIndexState) append(dst []byte) []byte {
	dst = appendUint(dst, uint64(c.ID))
	dst = append(dst, byte(c.From), byte(c.To))
	dst = appendString(dst, c.Reason)
	return appendUint(appendUint(appendUint(dst, c.Guard.Generation), c.Guard.RollbackID), c.IfTopology)
}

func (c *AllocateCopies) append(dst []byte) []byte {
	dst = appendUint(dst, uint64(c.ID))
	dst = appendUint(dst, c.Revision)
	return appendIDs(dst, c.Copies)
}

func (c *ForgetCopies) append(dst []byte) []byte {
	dst = appendUint(dst, uint64(c.ID))
	dst = appendUint(dst, c.IfTopology)
	return appendIDs(dst, c.Copies)
}

func (c *RemoveIndex) append(dst []byte) []byte { return appendUint(dst, uint64(c.ID)) }

func (c *AdvanceStability) append(dst []byte) []byte {
	dst = appendUint(dst, uint64(len(c.Buckets)))
	for i := range c.Buckets {
		b := &c.Buckets[i]
		dst = appendString(dst, b.Bucket)
		dst = appendUint(dst, b.Generation)
		dst = appendUint(dst, b.RollbackID)
		dst = appendUint(dst, b.Number)
		dst = appendBytes(dst, b.Stability)
		dst = appendBytes(dst, b.Mutation)
		dst = appendVBucketLogs(dst, b.Logs)
	}
	return dst
}

func (c *SetBackfillTimestamp) append(dst []byte) []byte {
	dst = appendString(dst, c.Bucket)
	dst = appendUint(dst, c.Generation)
	return appendVector(dst, c.Vector)
}

func (c *SetRollbackStep) append(dst []byte) []byte {
	dst = appendString(dst, c.Bucket)
	dst = appendUint(dst, c.Generation)
	dst = appendUint(dst, c.ID)
	dst = append(dst, byte(c.From), byte(c.To))
	dst = appendVector(dst, c.Failover)
	dst = appendVector(dst, c.Restart)
	dst = appendVector(dst, c.Stability)
	return appendVBucketLogs(dst, c.Logs)
}

func (c *RollbackLogs) append(dst []byte) []byte {
	dst = appendUint(appendUint(appendString(dst, c.Bucket), c.Generation), c.ID)
	return appendVBucketLogs(dst, c.Logs)
}

func (c *SetFormatLevel) append(dst []byte) []byte { return appendUint(dst, c.Level) }
func (c *SetLimits) append(dst []byte) []byte      { return appendLimits(dst, c.Limits) }

// Flags of an encoded RaiseEpoch.
const (
	raiseClearLedger = 1 << iota
	raiseSkipNumbers // this and the following flags are never in a log: a recovery applies its command to a snapshot
	raiseResetLimits
)

func decodeRaiseEpoch(d *decoder) *RaiseEpoch {
	c := &RaiseEpoch{Epoch: d.uint()}
	flags := d.byte()
	if flags > raiseClearLedger|raiseSkipNumbers|raiseResetLimits {
		d.fail("flags %x of a raised epoch", flags)
	}
	c.ClearLedger, c.SkipNumbers, c.ResetLimits = flags&raiseClearLedger != 0, flags&raiseSkipNumbers != 0,
		flags&raiseResetLimits != 0
	return c
}

func (c *RaiseEpoch) append(dst []byte) []byte {
	flags := byte(0)
	if c.ClearLedger {
		flags |= raiseClearLedger
	}
	if c.SkipNumbers {
		flags |= raiseSkipNumbers
	}
	if c.ResetLimits {
		flags |= raiseResetLimits
	}
	return append(appendUint(dst, c.Epoch), flags)
}

// decodeBody reads the fields of a command; it returns nil for a kind that this program does not support. Errors stay
// in d.
func decodeBody(k kind, d *decoder) Body {
	switch k {
	case kindReserved:
		return &Reserved{}
	case kindBootstrapCluster:
		return &BootstrapCluster{ClusterID: d.string(), Epoch: d.uint(), FormatLevel: d.uint(), Limits: d.limits()}
	case kindLeaderStarted:
		return &LeaderStarted{Term: d.uint(), Manager: d.manager()}
	case kindSetBucketSettings:
		return decodeSetBucketSettings(d)
	case kindSetBucket:
		return decodeSetBucket(d)
	case kindBucketGone:
		return &BucketGone{Name: d.string(), UUID: d.string()}
	case kindSetFormatLevel:
		return &SetFormatLevel{Level: d.uint()}
	case kindSetLimits:
		return &SetLimits{Limits: d.limits()}
	case kindRaiseEpoch:
		return decodeRaiseEpoch(d)
	}
	if b := decodeRegistrationBody(k, d); b != nil {
		return b
	}
	return decodeIndexBody(k, d)
}

// decodeRegistrationBody reads commands about managers, projectors and indexers.
func decodeRegistrationBody(k kind, d *decoder) Body {
	switch k {
	case kindRegisterManager:
		return &RegisterManager{Manager: d.manager()}
	case kindRegisterProjector:
		return &RegisterProjector{Projector: d.projector()}
	case kindRegisterIndexer:
		return &RegisterIndexer{Indexer: d.indexer()}
	case kindRemoveManager:
		return &RemoveManager{ID: d.string()}
	case kindBeginRemoval:
		return &BeginRemoval{ID: d.string()}
	case kindRemoveProjector:
		return &RemoveProjector{ID: index.ProjectorID(d.string()), BootID: d.string()}
	case kindRemoveIndexer:
		return &RemoveIndexer{Node: index.NodeID(d.byte()), UUID: d.string()}
	case kindEvictIndexer:
		return decodeEvictIndexer(d)
	case kindEvictCopies:
		return decodeEvictCopies(d)
	case kindNoteAbsences:
		return &NoteAbsences{Offline: d.seenIndexers(), Back: d.seenIndexers()}
	}
	return nil
}

func decodeCreateIndex(d *decoder) *CreateIndex {
	c := &CreateIndex{Definition: d.definition(), Layout: d.layout(), Placement: d.placements(), IfNotExists: d.bool()}
	if f := &c.Definition; f.Replaces != 0 || f.Origin != 0 || f.SplitFailed != "" || f.SplitCause != "" ||
		f.RequestedPartitions != 0 {
		d.fail("a new index that replaces index %d, or whose split failed, or that was split", f.Replaces)
	}
	return c
}

// decodeIndexBody reads commands about indexes, timestamps and rollbacks.
func decodeIndexBody(k kind, d *decoder) Body {
	switch k {
	case kindCreateIndex:
		return decodeCreateIndex(d)
	case kindBuildIndexes:
		return &BuildIndexes{IDs: ids[index.ID](d), IfMatch: d.uint(), Rules: d.uint32()}
	case kindDropIndex:
		return &DropIndex{ID: index.ID(d.uint()), IfMatch: d.uint()}
	case kindSetIndexState:
		return &SetIndexState{
			ID: index.ID(d.uint()), From: index.State(d.byte()), To: index.State(d.byte()), Reason: d.string(),
			Guard: Guard{Generation: d.uint(), RollbackID: d.uint()}, IfTopology: d.uint(),
		}
	case kindAllocateCopies:
		return &AllocateCopies{ID: index.ID(d.uint()), Revision: d.uint(), Copies: ids[index.CopyID](d)}
	case kindForgetCopies:
		return &ForgetCopies{ID: index.ID(d.uint()), IfTopology: d.uint(), Copies: ids[index.CopyID](d)}
	case kindRemoveIndex:
		return &RemoveIndex{ID: index.ID(d.uint())}
	}
	for _, decode := range [...]func(kind, *decoder) Body{decodeTimestampBody, decodeUserBody, decodeRebalanceBody,
		decodeDifferenceBody} {
		if b := decode(k, d); b != nil {
			return b
		}
	}
	return decodeRestoreBody(k, d)
}

// decodeTimestampBody reads commands about a bucket's timestamps and rollbacks.
func decodeTimestampBody(k kind, d *decoder) Body {
	switch k {
	case kindAdvanceStability:
		c := &AdvanceStability{}
		for n := d.count(); n > 0 && d.err == nil; n-- {
			c.Buckets = append(c.Buckets, BucketAdvance{
				Bucket: d.string(), Generation: d.uint(), RollbackID: d.uint(), Number: d.uint(),
				Stability: d.bytes(), Mutation: d.bytes(), Logs: d.vbucketLogs(),
			})
		}
		return c
	case kindSetBackfillTimestamp:
		return &SetBackfillTimestamp{Bucket: d.string(), Generation: d.uint(), Vector: d.vector()}
	case kindSetRollbackStep:
		return &SetRollbackStep{
			Bucket: d.string(), Generation: d.uint(), ID: d.uint(), From: RollbackStep(d.byte()), To: RollbackStep(d.byte()),
			Failover: d.vector(), Restart: d.vector(), Stability: d.vector(), Logs: d.vbucketLogs(),
		}
	case kindRollbackLogs:
		return &RollbackLogs{Bucket: d.string(), Generation: d.uint(), ID: d.uint(), Logs: d.vbucketLogs()}
	}
	return nil
}
