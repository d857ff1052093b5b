package ingest

import (
	"fmt"
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// crowded is a bucket of 1,024 vbuckets whose streams are about to feed copies with data, each with a list of its
// own, and with an event for all of them in each queue.
func crowded(b *testing.B, copies int) (s *Bucket, ids []index.CopyID) {
	b.Helper()
	s = idle(b, 1024, copies, true)
	for id := range index.CopyID(copies) {
		ids = append(ids, id+1)
	}
	for vb := range uint16(1024) {
		if v := s.Accept(Source{Projector: "p1", Connection: 1}, &keyversion.Event{Kind: keyversion.Insert, VBucket: vb,
			Incarnation: incOf(1), Seqno: 101, Window: timestamp.Window{Start: 100, End: 101}}); v != Taken {
			b.Fatal(v)
		}
	}
	return s, ids
}

// BenchmarkLoop measures how long the loop of a bucket of 1,024 vbuckets is occupied by one event, or one call, that
// concerns all of its copies, each with a list of its own: the most expensive ones.
func BenchmarkLoop(b *testing.B) {
	log, left := timestamp.FailoverLog{{VBUUID: 7}}, timestamp.FailoverLog{{VBUUID: 8, Seqno: 50}, {VBUUID: 7}}
	all := func(l timestamp.FailoverLog) (logs []timestamp.FailoverLog) {
		for range 1024 {
			logs = append(logs, l)
		}
		return logs
	}
	begin := func(s *Bucket, ids []index.CopyID, vb uint16, inc uint64, g keyversion.Begin) {
		g.Copies = ids
		s.Accept(Source{Projector: "p1", Connection: 2}, &keyversion.Event{Kind: keyversion.StreamBegin, VBucket: vb,
			Incarnation: incOf(inc), Begin: &g})
	}
	for _, c := range []struct {
		name string
		do   func(s *Bucket, ids []index.CopyID) func()
	}{
		{"begin", func(s *Bucket, ids []index.CopyID) func() {
			return func() { begin(s, ids, 5, 2, keyversion.Begin{Start: 101, Log: log}) }
		}},
		{"begin purged", func(s *Bucket, ids []index.CopyID) func() {
			return func() { begin(s, ids, 5, 2, keyversion.Begin{Start: 50, Purge: 200, Log: log}) }
		}},
		{"begin left", func(s *Bucket, ids []index.CopyID) func() {
			return func() { begin(s, ids, 5, 2, keyversion.Begin{Start: 50, Log: left}) }
		}},
		{"add", func(s *Bucket, ids []index.CopyID) func() {
			p := s.copies[0].parts
			c := Copy{ID: 100_000, Index: 1, Ready: true}
			for vb := range p {
				s.vbs[vb].awaited = []index.CopyID{100_000}
				c.Positions, c.Logs = append(c.Positions, p[vb].pos), append(c.Logs, p[vb].log)
			}
			return func() { _ = s.Add(c) }
		}},
		{"remove", func(s *Bucket, ids []index.CopyID) func() { return func() { s.Remove(ids[0]) } }},
		{"reopened", func(s *Bucket, ids []index.CopyID) func() {
			return func() { _ = s.Reopened(ids[0], nil, nil) }
		}},
		{"poll", func(s *Bucket, ids []index.CopyID) func() {
			var vbs []uint16
			for vb := range uint16(1024) {
				vbs = append(vbs, vb)
			}
			return func() { s.Poll(vbs, incOf(3)) }
		}},
		{"report", func(s *Bucket, ids []index.CopyID) func() {
			return func() { s.HW(); s.States(); s.Accepted(); s.Backfill(func(index.ID) bool { return true }) }
		}},
		{"backlogs", func(s *Bucket, ids []index.CopyID) func() {
			return func() { s.Backlogs(make([]uint64, 1024), func(index.CopyID) []Position { return nil }) }
		}},
		{"draw 16", func(s *Bucket, ids []index.CopyID) func() {
			return func() { s.Draw(&strings.Builder{}, 0, 16) }
		}},
		{"wants", func(s *Bucket, ids []index.CopyID) func() {
			for vb := range uint16(1024) {
				begin(s, ids, vb, 2, keyversion.Begin{Start: 150, Log: log})
			}
			return func() {
				for i, w := range s.Wants() {
					s.OpenSide(w, uint64(i))
				}
			}
		}},
		{"32 refused", func(s *Bucket, ids []index.CopyID) func() {
			for vb := range uint16(1024) {
				begin(s, ids, vb, 2, keyversion.Begin{Start: 150, Log: log})
			}
			for i, w := range s.Wants() {
				s.OpenSide(w, uint64(i))
			}
			return func() {
				for vb := range 32 {
					s.SideRefused(vb, uint64(vb), 120)
				}
			}
		}},
		{"flush", func(s *Bucket, ids []index.CopyID) func() {
			at := timestamp.New(1024)
			for vb := range 1024 {
				at.Set(vb, timestamp.Position{VBUUID: 7, Seqno: 101})
			}
			s.Publish(timestamp.Stability{Ref: timestamp.Ref{Number: 1}, Vector: at, Logs: all(log)})
			return func() { s.Flush() }
		}},
		{"flush long queues", func(s *Bucket, ids []index.CopyID) func() {
			at := timestamp.New(1024)
			for vb := range 1024 {
				at.Set(vb, timestamp.Position{VBUUID: 7, Seqno: 601})
				for q := uint64(102); q <= 601; q++ {
					s.Accept(Source{Projector: "p1", Connection: 1}, &keyversion.Event{Kind: keyversion.Insert,
						VBucket: uint16(vb), Incarnation: incOf(1), Seqno: q, Window: timestamp.Window{Start: q - 1, End: q}})
				}
			}
			s.Publish(timestamp.Stability{Ref: timestamp.Ref{Number: 1}, Vector: at, Logs: all(log)})
			return func() { s.Flush() }
		}},
		{"ahead", func(s *Bucket, ids []index.CopyID) func() { return func() { s.ApplyAhead(1<<30, 0) } }},
		{"prepare", func(s *Bucket, ids []index.CopyID) func() {
			logs, held := all(left), make([]Held, 8)
			return func() { s.RollbackAsk(1, logs, incOf(5), func(index.CopyID, int) []Held { return held }) }
		}},
		{"rollback", func(s *Bucket, ids []index.CopyID) func() {
			logs := all(left)
			return func() { s.Rollback(1, logs, incOf(5)) }
		}},
		{"restored", func(s *Bucket, ids []index.CopyID) func() {
			for vb := range uint16(1024) {
				begin(s, ids, vb, 2, keyversion.Begin{Start: 50, Log: left})
			}
			w := s.Work()
			if len(w) != 1024*len(ids) {
				b.Fatal(len(w))
			}
			return func() {
				for i := range w {
					s.Restored(*w[i].Restore, Position{}, nil)
				}
			}
		}},
		{"tombstones", func(s *Bucket, ids []index.CopyID) func() {
			return func() {
				for _, id := range ids {
					for vb := range 1024 {
						s.HoldsTombstones(id, vb)
					}
				}
			}
		}},
	} {
		for _, copies := range []int{40, 246} {
			b.Run(fmt.Sprintf("%s/%d", c.name, copies), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					s, ids := crowded(b, copies)
					f := c.do(s, ids)
					b.StartTimer()
					f()
				}
			})
		}
	}
}
