package server

import (
	"slices"
	"strings"
	"testing"

	"tidemark/kv/mcbp"
)

// TestOperationsAllowedByAnyRole: a user with any role in a bucket may learn where it is and which collections it
// has. Every other operation needs a right of its own: a new operation needs one, or must be listed here.
func TestOperationsAllowedByAnyRole(t *testing.T) {
	open := []mcbp.Opcode{mcbp.OpGetClusterConfig, mcbp.OpGetCollectionsManifest, mcbp.OpGetCollectionID,
		mcbp.OpGetScopeID, mcbp.OpVerbosity, mcbp.OpSelectBucket}
	never := []mcbp.Opcode{mcbp.OpDCPStreamEnd, mcbp.OpDCPSnapshotMarker, mcbp.OpDCPMutation, mcbp.OpDCPDeletion,
		mcbp.OpDCPExpiration, mcbp.OpDCPSystemEvent, mcbp.OpDCPSeqnoAdvanced, mcbp.OpDCPOSOSnapshot} // sent only by nodes
	anybody := []mcbp.Opcode{mcbp.OpQuit, mcbp.OpQuitQ, mcbp.OpNoop, mcbp.OpVersion, mcbp.OpHello, mcbp.OpGetErrorMap,
		mcbp.OpSASLList, mcbp.OpSASLAuth, mcbp.OpSASLStep}
	for n := range 256 {
		op := mcbp.Opcode(n)
		if strings.HasPrefix(op.String(), "opcode ") || refusal(op) != "" || slices.Contains(anybody, op) ||
			slices.Contains(never, op) {
			continue
		}
		if got := needs(op) == needsSee; got != slices.Contains(open, op) {
			t.Errorf("%v: to see the bucket is enough: %v", op, got)
		}
	}
}
