package ingest

import "slices"

// Rules is a set of protocol rules. They exist as values so that a simulation can switch one off and show what breaks;
// the product always runs with all of them.
type Rules uint32

const (
	posSkip Rules = 1 << iota // skip what the copy's own main or A covers, never by the node's HW
	// a stream that starts above what was received leaves a gap: join there, fill by a side stream
	gapRule
	straddle    // an S inside a received window cannot be made: floor := the window's end
	sideFloor   // what a side stream read hides everything up to the ends of its windows
	tombstones  // while side < A a deletion leaves a tombstone
	windowRule  // the branch rule counts windows and floors, not only seqnos
	beginCheck  // own queue and state are held against the log that BEGIN carries
	staleLog    // a producer with an older vbucket map is refused
	ownerFence  // an incarnation belongs to the projector that began it
	incarnation // anything of another incarnation is dropped
	fencePoll   // a poll refuses incarnations below its own
	dropData    // between DropData and BEGIN nothing is accepted
	resettle    // a copy that becomes whole judges the last flushed S anew
	sBranch     // an S that is not on the branch of what is received is discarded
	sRollback   // an S of an older rollback id is ignored
	rangeA      // deleting a range moves A up to main
	purgeFloor  // joining below the purge seqno: floor >= purge
	purgeBegin  // a stream from below purge that passes us by: start from nothing
	purgeSide   // KV refuses a side stream's start: delete the range, take it from 0
	purgeRows   // a side stream from 0 over rows that a purged deletion may have removed: the same
	aheadFloor  // applying ahead moves the floor to the windows' ends
	sideBranch  // a side stream is taken only on the branch of the maintenance stream
	awaited     // a copy that comes after the BEGIN or ACTIVATE that named it joins where the stream is
	slicePos    // a copy skips by its own position, not by the node's HW
	scoped      // only what left its branch is put back
	deactivate  // after DEACTIVATE a copy holds nobody back
	sideEnd     // a side stream counts up to the end that was asked for, however far KV reads on
	wholeParts  // an event that comes in parts counts with the last of them
)

func (b *Bucket) on(r Rules) bool { return b.off&r == 0 }

// ruleNames are in the order of the bits.
var ruleNames = [...]string{
	"posSkip", "gapRule", "straddle", "sideFloor", "tombstones", "windowRule", "beginCheck", "staleLog", "ownerFence",
	"incarnation", "fencePoll", "dropData", "resettle", "sBranch", "sRollback", "rangeA", "purgeFloor",
	"purgeBegin", "purgeSide", "purgeRows", "aheadFloor", "sideBranch", "awaited", "slicePos", "scoped", "deactivate",
	"sideEnd", "wholeParts",
}

// RuleNames lists the rules.
func RuleNames() []string { return slices.Clone(ruleNames[:]) }

// Rule returns the rule of that name, 0 when there is none.
func Rule(name string) Rules {
	for i, n := range ruleNames {
		if n == name {
			return 1 << i
		}
	}
	return 0
}
