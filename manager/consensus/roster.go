package consensus

import (
	"slices"
	"time"
)

// Timing and limits of member management.
const (
	// promoteLag is how many entries a new server may lack to count as caught up: what a busy leader writes in a moment.
	promoteLag = 512
	// DefaultPromoteAfter is how long a new server must be caught up, and answer, before it becomes a voter.
	DefaultPromoteAfter = 3 * time.Second
	// MaxMembers bounds the servers of a cluster, including nonvoters: each costs the leader a stream.
	MaxMembers = 15
)

// Sighting is the leader's view of a member.
type Sighting struct {
	Server
	Alive     bool   // it answered the newest survey under this server id
	LastIndex uint64 // last index of its log
	SeenMS    int64  // when it last answered, by the node's monotonic clock; 0: not in this term
	SinceMS   int64  // since when it answers, or does not, by that clock
	Problem   string // why it did not answer
}

// view holds the findings of one round.
type view struct {
	nowMS   int64  // by a monotonic clock
	self    Server // this node, with its actual address, even if the configuration differs
	last    uint64 // last index of the leader's log before the survey
	servers []Server
	answers map[string]answerOf // of the others, by server id
	known   []string            // ids of the managers in the state
}

// answerOf is the answer of a server.
type answerOf struct {
	last    uint64
	problem string // not empty: it did not answer
}

// step is what the leader should do next about the members: at most one change, and registrations to remove.
type step struct {
	promote   *Server  // nonvoter to make a voter
	readdress *Server  // member whose new address is to be written
	forget    []string // registered managers that are not members
	seen      []Server // members for which it was decided
}

// roster tracks since when each server has answered and since when it has been caught up.
type roster struct {
	promoteAfterMS int64
	members        map[string]*Sighting
	readySince     map[string]int64
	nonMemberSince map[string]int64
}

func newRoster(promoteAfter time.Duration) *roster {
	return &roster{promoteAfterMS: promoteAfter.Milliseconds(), members: map[string]*Sighting{},
		readySince:     map[string]int64{},
		nonMemberSince: map[string]int64{}}
}

// step takes the findings of a round and returns what to do. It depends only on v and the earlier rounds.
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
	s.forget = r.nonMembers(v, present)
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

// ready reports whether a nonvoter has been caught up and answering for long enough.
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

// nonMembers returns the registered managers that have not been members for some time: left by an interrupted removal
// or by a recovery.
func (r *roster) nonMembers(v view, present map[string]bool) (forget []string) {
	for id := range r.nonMemberSince {
		if present[id] || !slices.Contains(v.known, id) {
			delete(r.nonMemberSince, id)
		}
	}
	for _, id := range v.known {
		if present[id] {
			continue
		}
		since, was := r.nonMemberSince[id]
		if !was {
			r.nonMemberSince[id] = v.nowMS
		} else if v.nowMS-since >= r.promoteAfterMS {
			forget = append(forget, id)
		}
	}
	return forget
}

// sightings returns a copy of the sightings in the order of the configuration.
func (r *roster) sightings(servers []Server) []Sighting {
	all := make([]Sighting, 0, len(servers))
	for _, s := range servers {
		if m := r.members[s.ID]; m != nil {
			all = append(all, *m)
		}
	}
	return all
}

// quorumAfter returns the numbers of voters and of answering voters that would remain after a removal, and how many a
// majority needs.
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

// silent returns the voter, other than but, that has been silent longest and can be removed: the answering voters are
// a majority without it. It returns "" if there is none.
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
