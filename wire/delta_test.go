package wire

import (
	"errors"
	"maps"
	"testing"

	"pgregory.net/rapid"
)

// TestAcked checks that an answered state is the base of the next report, and that a full report follows one without
// an answer, and an answer of a leader that asks for it or does not know the sender.
func TestAcked(t *testing.T) {
	var r Acked[string]
	for i, c := range []struct {
		what  string
		reply *ReportReply // nil: none
		base  uint64
	}{
		{"the first", &ReportReply{Known: true}, 1},
		{"the next", &ReportReply{Known: true}, 2},
		{"no answer", nil, 0},
		{"a full report", &ReportReply{Known: true}, 4},
		{"it wants all", &ReportReply{Known: true, Full: true}, 0},
		{"a full report again", &ReportReply{Known: true}, 6},
		{"it does not know the projector", &ReportReply{}, 0},
	} {
		if c.reply == nil {
			r.Lost()
		} else {
			r.Answered(uint64(i)+1, c.what, c.reply)
		}
		if known, base := r.Known(); base != c.base || (known == c.what) != (c.base > 0) {
			t.Errorf("%s: %q is known by %d", c.what, known, base)
		}
	}
}

// TestNewest checks that a delta is accepted on the newest report only, and after a lost one only a full report.
func TestNewest(t *testing.T) {
	var n Newest
	for _, c := range []struct {
		what                   string
		base, number           uint64
		overtaken, taken, rest bool
	}{
		{"a delta before anything", 3, 4, false, false, false},
		{"everything", 0, 5, false, true, true},
		{"a delta of it", 5, 6, false, true, true},
		{"the same again", 5, 6, true, false, false},
		{"everything, once more", 0, 7, false, true, true},
		{"a delta of one that was lost", 8, 9, false, false, false},
		{"a delta of the one that was refused", 9, 10, false, false, false},
		{"everything after it", 0, 11, false, true, true},
		{"outside the order", 0, 0, false, true, false},
		{"a delta of the previous table", 11, 12, false, false, false},
	} {
		overtaken := n.Overtaken(c.number)
		err := n.Take(c.base, c.number)
		if overtaken != c.overtaken || errors.Is(err, ErrBase) == c.taken || n.Whole() != c.rest {
			t.Errorf("%s: overtaken %v, %v, whole %v", c.what, overtaken, err, n.Whole())
		}
	}
}

// TestDeltas checks that a table sent as deltas, whatever is lost, repeated or late, and whichever side restarts, is
// at the receiver what it was at the sender when the newest report was taken. Two exchanges after the faults nothing
// is missing.
func TestDeltas(t *testing.T) {
	type table map[uint64]string
	type message struct {
		base, number uint64
		rows         []byte
	}
	send := func(number uint64, was, is table, base uint64) message {
		w := rowWriter[string]{put: appendText}
		for key := range uint64(6) {
			kind, has := is[key]
			switch before, had := was[key]; {
			case has && (!had || before != kind):
				w.row(key, kind)
			case had && !has:
				w.none(key)
			}
		}
		return message{base, number, w.packed()}
	}
	rapid.Check(t, func(t *rapid.T) {
		var sender Acked[table]
		var order Newest
		is, has, sent := table{}, table{}, map[uint64]table{}
		take := func(m message) *ReportReply {
			if order.Overtaken(m.number) {
				return &ReportReply{Known: true, Full: !order.Whole()}
			}
			if order.Take(m.base, m.number) == nil {
				if m.base == 0 {
					clear(has)
				}
				if err := (rowReader[string]{keys: 6, gone: true, take: (*unpacker).text}).read(m.rows, func(key uint64,
					kind *string, _ [2]uint64) error {
					if delete(has, key); kind != nil {
						has[key] = *kind
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				if !maps.Equal(has, sent[m.number]) {
					t.Fatalf("report %d of %d gives %v, want %v", m.number, m.base, has, sent[m.number])
				}
			}
			return &ReportReply{Known: true, Full: !order.Whole()}
		}
		var number uint64
		var late []message
		exchange := func(fate string) {
			was, base := sender.Known()
			number++
			sent[number] = maps.Clone(is)
			m := send(number, was, is, base)
			if fate == "lost" || fate == "late" {
				if sender.Lost(); fate == "late" {
					late = append(late, m)
				}
				return
			}
			a := take(m)
			if fate == "twice" {
				a = take(m)
			}
			if fate == "no answer" {
				sender.Lost()
				return
			}
			sender.Answered(number, sent[number], a)
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if key := rapid.Uint64Max(5).Draw(t, "key"); rapid.Bool().Draw(t, "gone") {
				delete(is, key)
			} else {
				is[key] = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "kind")
			}
			switch fate := rapid.SampledFrom([]string{"", "", "", "lost", "late", "twice", "no answer", "comes", "sender",
				"receiver"}).Draw(t, "fate"); fate {
			case "comes":
				if len(late) > 0 {
					take(late[0])
					late = late[1:]
				}
			case "sender": // restarts with another receiver, like a component's next process
				sender, order, late = Acked[table]{}, Newest{}, nil
				clear(has)
			case "receiver":
				order = Newest{}
				clear(has)
			default:
				exchange(fate)
			}
		}
		exchange("")
		exchange("")
		if !order.Whole() || !maps.Equal(has, is) {
			t.Fatalf("%v, whole %v, want %v", has, order.Whole(), is)
		}
	})
}
