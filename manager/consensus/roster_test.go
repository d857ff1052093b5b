package consensus

import (
	"fmt"
	"testing"
	"time"
)

// TestRosterStep: a new server is promoted once it has been caught up and answering for long enough without a break;
// registrations of non-members are removed after the same time; one change at a time.
func TestRosterStep(t *testing.T) {
	a, b, c := Server{"a", "a:1", true}, Server{"b", "b:1", false}, Server{"c", "c:1", false}
	type round struct {
		at      int64 // seconds
		last    uint64
		b, c    answerOf
		known   []string
		aMoved  bool
		promote string
		forget  int
	}
	for name, rounds := range map[string][]round{
		"caught up and stable": {
			{at: 0, last: 1000, b: answerOf{last: 1000}, c: answerOf{last: 10}},
			{at: 2, last: 1000, b: answerOf{last: 900}, c: answerOf{last: 100}},
			{at: 3, last: 1000, b: answerOf{last: 900}, c: answerOf{last: 800}, promote: "b"},
		},
		"a break begins anew": {
			{at: 0, last: 10, b: answerOf{last: 10}, c: answerOf{problem: "x"}},
			{at: 2, last: 10, b: answerOf{problem: "refused"}, c: answerOf{problem: "x"}},
			{at: 4, last: 10, b: answerOf{last: 10}, c: answerOf{problem: "x"}},
			{at: 6, last: 10, b: answerOf{last: 10}, c: answerOf{problem: "x"}},
			{at: 7, last: 10, b: answerOf{last: 10}, c: answerOf{problem: "x"}, promote: "b"},
		},
		"behind": {
			{at: 0, last: 1000, b: answerOf{last: 1}, c: answerOf{last: 1}},
			{at: 9, last: 1000, b: answerOf{last: 1000 - promoteLag - 1}, c: answerOf{last: 1}},
		},
		"one at a time": {
			{at: 0, last: 1, b: answerOf{last: 1}, c: answerOf{last: 1}},
			{at: 3, last: 1, b: answerOf{last: 1}, c: answerOf{last: 1}, promote: "b"},
		},
		"its own address first": {
			{at: 0, last: 1, b: answerOf{last: 1}, c: answerOf{last: 1}, aMoved: true},
			{at: 3, last: 1, b: answerOf{last: 1}, c: answerOf{last: 1}, aMoved: true},
			{at: 4, last: 1, b: answerOf{last: 1}, c: answerOf{last: 1}, promote: "b"},
		},
		"non-members": {
			{at: 0, b: answerOf{problem: "x"}, c: answerOf{problem: "x"}, known: []string{"a", "b", "old"}},
			{at: 2, b: answerOf{problem: "x"}, c: answerOf{problem: "x"}, known: []string{"a", "b", "old"}},
			{at: 3, b: answerOf{problem: "x"}, c: answerOf{problem: "x"}, known: []string{"a", "b", "old"}, forget: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRoster(3 * time.Second)
			for _, x := range rounds {
				self := Server{ID: "a", Raft: "a:1"}
				if x.aMoved {
					self.Raft = "a:2"
				}
				s := r.step(view{nowMS: x.at * 1000, self: self, last: x.last, servers: []Server{a, b, c},
					answers: map[string]answerOf{"b": x.b, "c": x.c}, known: x.known})
				promoted := ""
				if s.promote != nil {
					promoted = s.promote.ID
				}
				if promoted != x.promote || len(s.forget) != x.forget || (s.readdress != nil) != x.aMoved {
					t.Fatalf("at %d s: %+v, want promotion of %q", x.at, s, x.promote)
				}
			}
		})
	}
}

func TestQuorumAfter(t *testing.T) {
	members := func(alive ...bool) (all []Sighting) {
		for i, ok := range alive {
			all = append(all, Sighting{Server: Server{ID: fmt.Sprint(i), Voter: true}, Alive: ok})
		}
		return all
	}
	for name, c := range map[string]struct {
		all     []Sighting
		removed string
		safe    bool
	}{
		"one of three":            {members(true, true, true), "2", true},
		"the dead one of three":   {members(true, true, false), "2", true},
		"a living one beside it":  {members(true, true, false), "1", false},
		"one of two":              {members(true, true), "1", true},
		"one of five, two dead":   {members(true, true, true, false, false), "2", false},
		"a dead one of five":      {members(true, true, true, false, false), "4", true},
		"the only one":            {members(true), "0", false},
		"a server without a vote": {append(members(true, true), Sighting{Server: Server{ID: "9"}}), "9", true},
	} {
		voters, alive, need := quorumAfter(c.all, c.removed)
		if safe := voters > 0 && alive >= need; safe != c.safe {
			t.Errorf("%s: %d voters, %d alive, %d needed", name, voters, alive, need)
		}
	}
}

// TestSilent returns the voter that has been silent longest, and only if the answering voters are a majority without
// it.
func TestSilent(t *testing.T) {
	up := func(id string) Sighting { return Sighting{Server: Server{ID: id, Voter: true}, Alive: true} }
	down := func(id string, since int64) Sighting {
		return Sighting{Server: Server{ID: id, Voter: true}, SinceMS: since}
	}
	idle := Sighting{Server: Server{ID: "n"}, SinceMS: 1}
	for _, c := range []struct {
		all  []Sighting
		want string
	}{
		{[]Sighting{up("a"), up("b"), down("c", 5)}, "c"},
		{[]Sighting{up("a"), idle, up("b"), down("c", 5), down("d", 3), up("e")}, "d"},
		{[]Sighting{up("a"), up("b"), up("e")}, ""},
		{[]Sighting{up("a"), down("b", 2), down("c", 5)}, ""}, // the majority is lost already
		{[]Sighting{down("b", 2), up("a")}, ""},               // b itself is to be removed
	} {
		if got := silent(c.all, "b"); got != c.want {
			t.Errorf("%v: %q, want %q", c.all, got, c.want)
		}
	}
}
