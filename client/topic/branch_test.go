package topic

import (
	"context"
	"testing"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// An event that was still being handled when its stream was given up moves the position; a stream that was requested
// from an earlier position is only accepted if that event is on its branch. Otherwise it is requested again, and KV
// answers with the seqno to roll back to: the new branch may have something else at the same seqno.
func TestEventOfAbandonedBranchRollsBack(t *testing.T) {
	for name, tc := range map[string]struct {
		log   timestamp.FailoverLog
		taken bool
	}{
		"the same branch":            {timestamp.FailoverLog{{VBUUID: 7}}, true},
		"a branch from there on":     {timestamp.FailoverLog{{VBUUID: 8, Seqno: 5}, {VBUUID: 7}}, true},
		"a branch from later on":     {timestamp.FailoverLog{{VBUUID: 8, Seqno: 9}, {VBUUID: 7}}, true},
		"a branch without the event": {timestamp.FailoverLog{{VBUUID: 8, Seqno: 4}, {VBUUID: 7}}, false},
		"a log without the branch":   {timestamp.FailoverLog{{VBUUID: 8, Seqno: 0}}, false},
		"a branch before the last": {timestamp.FailoverLog{{VBUUID: 9, Seqno: 6}, {VBUUID: 8, Seqno: 4}, {VBUUID: 7}},
			false},
		"two branches, both later on": {timestamp.FailoverLog{{VBUUID: 9, Seqno: 6}, {VBUUID: 8, Seqno: 5}, {VBUUID: 7}},
			true},
	} {
		t.Run(name, func(t *testing.T) {
			var seqnos []uint64
			s := &Subscription{cfg: Config{Handle: func(_ context.Context,
				ev *keyversion.Event) error {
				seqnos = append(seqnos, ev.Seqno)
				return nil
			}},
				vbuckets: []vbucket{{at: Position{VBUUID: 7, Seqno: 5, Window: timestamp.Window{Start: 5, End: 5}}, request: 2}}}
			k := &sink{s: s}
			begin := &keyversion.Event{Kind: keyversion.StreamBegin, Incarnation: index.Incarnation{Counter: 2},
				VBUUID: tc.log.Newest(),
				Begin:  &keyversion.Begin{Start: 4, Log: tc.log}}
			five, six := *begin, *begin
			five.Kind, five.Begin, five.Seqno = keyversion.Insert, nil, 5
			six.Kind, six.Begin, six.Seqno = keyversion.Insert, nil, 6
			for _, ev := range []*keyversion.Event{begin, &five, &six} {
				if err := k.event(t.Context(), ev); err != nil {
					t.Fatal(err)
				}
			}
			switch v := &s.vbuckets[0]; {
			case tc.taken && (len(seqnos) != 1 || seqnos[0] != 6 || v.owner != k || v.at.Seqno != 6 ||
				v.at.VBUUID != tc.log.Newest()):
				t.Errorf("got %v, %+v", seqnos, v)
			case !tc.taken && (len(seqnos) != 0 || v.request != 0 || v.owner != nil || v.at.VBUUID != 7 || v.at.Seqno != 5):
				t.Errorf("got %v, %+v: want it to be requested anew", seqnos, v)
			}
		})
	}
}
