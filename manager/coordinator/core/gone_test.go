package core

import (
	"context"
	"slices"
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/statecontext"
	"tidemark/wire"
)

// spareCrowd is a crowd with another live projector, p9, that never streamed anything.
type spareCrowd struct{ *crowd }

func newSpareCrowd(t *testing.T) spareCrowd {
	s := spareCrowd{newCrowd(t, 0)}
	s.do(&statecontext.RegisterProjector{Projector: statecontext.Projector{ID: "p9", Admin: "http://p9", BootID: "boot"}})
	if alive := s.lead.components.alive; len(alive) != 2 {
		t.Fatal(alive)
	}
	return s
}

// do commits a command, and runs a tick that sees it.
func (s spareCrowd) do(b statecontext.Body) {
	s.a.do(b)
	s.now.State = s.a.state
	for _, in := range []Input{Committed{}, Tick{}} {
		s.now.MS += 20
		s.lead.Step(s.now, in)
	}
}

// end ends all streams of the bucket.
func (s spareCrowd) end() {
	b := s.lead.buckets.byName["b"]
	for v := range b.ledger.Len() {
		e := b.ledger.At(v)
		b.ledger.End(s.now.MS, v, e.Owner, e.Incarnation)
	}
}

// answers takes answers of the form "PROJECTOR WORD": the bucket is here, another one, gone, or cannot be queried
// about. It returns after how many answers a command about the bucket was proposed, and the command.
func (s spareCrowd) answers(uuid string, answers ...string) (after int, what statecontext.Body) {
	for i, answer := range answers {
		who, word, _ := strings.Cut(answer, " ")
		in := &BucketChecked{CheckBucket: CheckBucket{Projector: index.ProjectorID(who), Bucket: "b", UUID: uuid}}
		switch word {
		case "here":
			in.Found = &wire.BucketReply{Name: "b", UUID: uuid, VBuckets: 4}
		case "another":
			in.Found = &wire.BucketReply{Name: "b", UUID: "other", VBuckets: 4}
		case "gone":
			in.Unknown, in.Err = true, ErrUnknownBucket
		case "silent":
			in.Err = context.DeadlineExceeded
		}
		for _, e := range s.lead.Step(s.now, in) {
			if p, is := e.(Propose); is && p.Key == "bucket/b" {
				return i + 1, p.Body
			}
		}
	}
	return 0, nil
}

// TestBucketGone checks that a bucket counts as gone, or as another one, after goneAfter consecutive answers of
// projectors that streamed it last, while it is not streamed. While all KV nodes are away, no index is lost through a
// projector that never streamed the bucket, or through one such answer among projectors that cannot query their nodes.
func TestBucketGone(t *testing.T) {
	for _, x := range []struct {
		what    string
		answers []string
		after   int // 0: the bucket stays
	}{
		{"deleted", []string{"p1 gone", "p1 gone", "p1 gone"}, 3},
		{"made anew", []string{"p1 another", "p1 another", "p1 another"}, 3},
		{"deleted, then made anew", []string{"p1 gone", "p1 gone", "p1 another"}, 3},
		{"p9 lacks it, never streamed", []string{"p9 gone", "p9 gone", "p9 gone", "p9 gone"}, 0},
		{"p9 finds another, never streamed", []string{"p9 another", "p9 another", "p9 another", "p9 another"}, 0},
		{"both", []string{"p1 gone", "p9 gone", "p9 gone", "p1 gone"}, 0},
		{"not in a row: KV is away", []string{"p1 gone", "p1 gone", "p1 silent", "p1 gone", "p1 gone"}, 0},
		{"not in a row: another, and away", []string{"p1 another", "p1 another", "p1 silent", "p1 another"}, 0},
		{"not in a row: it is here", []string{"p1 gone", "p1 gone", "p9 here", "p1 gone", "p1 gone"}, 0},
		{"in a row of those that count", []string{"p1 gone", "p9 silent", "p1 gone", "p9 silent", "p1 gone"}, 5},
	} {
		s := newSpareCrowd(t)
		if after, what := s.answers("u", x.answers...); after != 0 {
			t.Errorf("%s: while it is streamed %T after %d answers", x.what, what, after)
		}
		s.end()
		after, what := s.answers("u", x.answers...)
		if after != x.after {
			t.Errorf("%s: %T after %d answers, want %d", x.what, what, after, x.after)
		}
		another := strings.HasSuffix(x.answers[len(x.answers)-1], "another")
		if _, is := what.(*statecontext.SetBucket); what != nil && is != another {
			t.Errorf("%s: %T", x.what, what)
		}
	}
}

// TestBucketGoneWithItsProjectors checks that all live projectors count if none of those that streamed the bucket is
// alive.
func TestBucketGoneWithItsProjectors(t *testing.T) {
	s := newSpareCrowd(t)
	s.lead.components.projectors["p1"].refused = true
	s.lead.membership.watchProjectors()
	if after, what := s.answers("u", "p9 gone", "p9 gone", "p9 gone"); after != 3 {
		t.Errorf("%T after %d answers, want 3", what, after)
	}
}

// TestBucketGoneIsReset checks that earlier answers do not count against a bucket that is re-created under its
// name.
func TestBucketGoneIsReset(t *testing.T) {
	s := newSpareCrowd(t)
	s.end()
	if after, what := s.answers("u", "p1 gone", "p1 gone", "p1 gone"); after != 3 {
		t.Fatalf("%T after %d answers, want 3", what, after)
	}
	s.lead.Step(s.now, &Proposed{Key: "bucket/b"})
	s.do(&statecontext.BucketGone{Name: "b", UUID: "u"})
	s.do(&statecontext.SetBucket{Name: "b", UUID: "u2", VBuckets: 4})
	if after, what := s.answers("u2", "p1 gone", "p9 gone", "p1 gone"); after != 3 {
		t.Errorf("%T after %d answers, want 3", what, after)
	}
}

// TestProjectorsQueriedForABucket checks that all projectors are queried in turn while the bucket is streamed, so that
// one with a wrong answer is logged, once until it finds the bucket; otherwise only those whose answers count.
func TestProjectorsQueriedForABucket(t *testing.T) {
	s := newSpareCrowd(t)
	turns := func() (who []index.ProjectorID) {
		for range 4 {
			s.now.MS += s.lead.settings.BucketCheck.Milliseconds()
			s.lead.nowMS, s.lead.effects = s.now.MS, nil
			s.lead.ledgers.checkBuckets()
			for _, e := range s.lead.effects {
				if c, is := e.(Send).Message.(CheckBucket); is {
					who = append(who, c.Projector)
				}
			}
		}
		slices.Sort(who)
		return who
	}
	if got := turns(); !slices.Equal(got, []index.ProjectorID{"p1", "p1", "p9", "p9"}) {
		t.Errorf("while it is streamed are queried %v", got)
	}
	doubted := s.lead.buckets.byName["b"].doubted
	s.answers("u", "p9 gone", "p1 here")
	if !doubted["p9"] {
		t.Error("what p9 says of a bucket that is streamed is not noted")
	}
	if s.answers("u", "p9 here"); len(doubted) != 0 {
		t.Errorf("that %v did not find it is noted for good", doubted)
	}
	s.end()
	if got := turns(); !slices.Equal(got, []index.ProjectorID{"p1", "p1", "p1", "p1"}) {
		t.Errorf("when it is not streamed are queried %v", got)
	}
}
