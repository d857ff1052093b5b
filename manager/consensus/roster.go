package consensus

import (
	"slices"
	"time"
)

// Pace of the care for members.
const (
	// promoteLag is how many entries a new server may lack to count as caught up: what a busy leader writes in a moment.
	promoteLag = 512
	// DefaultPromoteAfter is how long a new server has to be caught up, and to answer, before it gets its vote.
	DefaultPromoteAfter = 3 * time.Second
	// MaxMembers bounds the servers of a cluster, those without a vote included: each costs the leader a stream.
	MaxMembers = 15
)

// Sighting is how the leader sees a member.
type Sighting struct {
	Server
	Alive     bool   // it answered the newest question, as that very server
	LastIndex uint64 // of its log
	SeenMS    int64  // when it last answered, by the node's steady clock; 0 never in this term
	SinceMS   int64  // since when it answers, or does not, by that clock
	Problem   string // why it did not answer
}

// view is what one round has found.
type view struct {
	nowMS   int64  // by a clock that does not step
	self    Server // as it is, whatever the configuration says
	last    uint64 // index of the leader's log before the others were asked
	servers []Server
	answers map[string]answerOf // of the others, by server id
	known   []string            // ids of the managers in the state
}

// answerOf is what a server answered.
type answerOf struct {
	last    uint64
	problem string // not empty: it did not
}

// step is what the leader should do next about the members: at most one change, and registrations to forget.
type step struct {
	promote   *Server  // give it its vote
	readdress *Server  // write down its new address
	forget    []string // managers in the state that are no members
	seen      []Server // on which it was decided
}

// roster remembers what it needs to judge: since when each server answers, and since when it is caught up.
type roster struct {
	promoteAfterMS int64
	members        map[string]*Sighting
	readySince     map[string]int64
	strangerSince  map[string]int64
}

func newRoster(promoteAfter time.Duration) *roster {
	return &roster{promoteAfterMS: promoteAfter.Milliseconds(), members: map[string]*Sighting{},
		readySince:    map[string]int64{},
		strangerSince: map[string]int64{}}
}

// step takes what was found and gives what to do. It is a function of what it was told before and of v.
func (r *roster) step(v view) (s step) {
	present := map[string]bool{}
	for _, m := range v.servers {
		present[m.ID] = true
		a := v.answers[m.ID]
		if m.ID == v.self.ID {
			a = answerOf{last: v.last}
			if m.Raft != v.self.Raft {
				moved := m
				moved.Raft = v.self.Raft
				s.readdress = &moved
			}
		}
		r.see(m, a, v.nowMS)
		if r.ready(m, a, v) && s.promote == nil {
			p := m
			s.promote = &p
		}
	}
	for id := range r.members {
		if !present[id] {
			delete(r.members, id)
			delete(r.readySince, id)
		}
	}
	s.forget = r.strangers(v, present)
	if s.readdress != nil { // one change at a time
		s.promote = nil
	}
	return s
}

func (r *roster) see(m Server, a answerOf, nowMS int64) {
	old := r.members[m.ID]
	alive := a.problem == ""
	if old == nil || old.Alive != alive {
		seen := int64(0)
		if old != nil {
			seen = old.SeenMS
		}
		old = &Sighting{SinceMS: nowMS, SeenMS: seen}
		r.members[m.ID] = old
	}
	old.Server, old.Alive, old.Problem = m, alive, a.problem
	if alive {
		old.LastIndex, old.SeenMS = a.last, nowMS
	}
}

// ready reports whether a server without a vote has been caught up, and has answered, for long enough.
func (r *roster) ready(m Server, a answerOf, v view) bool {
	if m.Voter || a.problem != "" || a.last+promoteLag < v.last {
		delete(r.readySince, m.ID)
		return false
	}
	since, was := r.readySince[m.ID]
	if !was {
		r.readySince[m.ID] = v.nowMS
		return false
	}
	return v.nowMS-since >= r.promoteAfterMS
}

// strangers are managers in the state that have been no members for some time: what a removal that was cut short, or a
// recovery, has left.
func (r *roster) strangers(v view, present map[string]bool) (forget []string) {
	for id := range r.strangerSince {
		if present[id] || !slices.Contains(v.known, id) {
			delete(r.strangerSince, id)
		}
	}
	for _, id := range v.known {
		if present[id] {
			continue
		}
		since, was := r.strangerSince[id]
		if !was {
			r.strangerSince[id] = v.nowMS
		} else if v.nowMS-since >= r.promoteAfterMS {
			forget = append(forget, id)
		}
	}
	return forget
}

// sightings returns a copy, in the order of the configuration.
func (r *roster) sightings(servers []Server) []Sighting {
	all := make([]Sighting, 0, len(servers))
	for _, s := range servers {
		if m := r.members[s.ID]; m != nil {
			all = append(all, *m)
		}
	}
	return all
}

// quorumAfter counts what a removal would leave: voters, those of them that answer, and how many a majority needs.
func quorumAfter(all []Sighting, removed string) (voters, alive, need int) {
	for _, m := range all {
		if m.Voter && m.ID != removed {
			voters++
			if m.Alive {
				alive++
			}
		}
	}
	return voters, alive, voters/2 + 1
}

// silent returns the voter, other than one, that has not answered for longest and can be removed: those that answer are
// a majority without it. "" when there is none.
func silent(all []Sighting, but string) (id string) {
	since := int64(0)
	for _, m := range all {
		if !m.Voter || m.Alive || m.ID == but || id != "" && m.SinceMS >= since {
			continue
		}
		if _, alive, need := quorumAfter(all, m.ID); alive >= need {
			id, since = m.ID, m.SinceMS
		}
	}
	return id
}
