package projector

import (
	"fmt"
	"time"

	"tidemark/internal/rpc"
)

// Reasons of /readyz that only projectors use.
const (
	reasonNoDefinitions = "no_definitions"
	reasonKV            = "kv_unavailable"
)

// noteLeader records whether the leader has received a report or registration of this projector.
func (p *Projector) noteLeader(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leaderErr = ""; err != nil {
		p.leaderErr = err.Error()
	}
}

// reasons returns what keeps this projector from its work: it must be registered, its reports must reach the leader,
// it must have definitions, and the KV node must accept it.
func (p *Projector) reasons() (all []rpc.Reason) {
	p.mu.Lock()
	defer p.mu.Unlock()
	add := func(code, detail string) { all = append(all, rpc.Reason{Code: code, Detail: detail}) }
	because := ""
	if p.leaderErr != "" {
		because = ": " + p.leaderErr
	}
	switch {
	case !p.authority.Registered:
		add(rpc.ReasonNoCluster, "no manager has registered this projector yet"+because)
	case p.leaderErr != "":
		add(rpc.ReasonNoLeader, "reports to the leader fail"+because)
	}
	if p.authority.Registered && p.defs.newest == nil {
		add(reasonNoDefinitions, "the leader has not sent this projector the definitions yet")
	}
	now := time.Now()
	for _, t := range p.troubles.list(p.cfg.KV, now) {
		add(reasonKV, fmt.Sprintf("KV node %s has not answered about bucket %q for %v: %s", t.Node, t.Bucket,
			now.Sub(time.UnixMilli(t.SinceMS)).Round(time.Second), t.Error))
	}
	return all
}
