package core

import (
	"testing"

	"tidemark/index"
)

// TestJoins runs testdata/joins/*.txt: activation timestamps of the indexes of a bucket with three vbuckets.
func TestJoins(t *testing.T) {
	runScripts(t, "testdata/joins", func(s *script) func() {
		j := NewJoins(3)
		return func() {
			switch s.d.Cmd {
			case "plan": // of a revision, with indexes
				s.say("joins up to %d", j.Plan(s.num("revision"), nums[index.ID](s, "indexes")))
			case "plans": // their number; each has one more index
				for i := range s.num("n") {
					j.Plan(i+1, nums[index.ID](s, "indexes")[:i+1])
				}
			case "activate": // what is above a seqno of a vbucket, by a plan's number
				j.Activate(s.num("plan"), uint16(s.num("vb")), s.num("seqno"))
			default:
				s.t.Fatalf("%s: unknown command %s", s.d.Pos, s.d.Cmd)
			}
			for _, a := range j.Activations() {
				s.say("revision %d indexes %v: vbuckets %v seqnos %v", a.Revision, a.Indexes, a.VBuckets, a.Seqnos)
			}
		}
	})
}
