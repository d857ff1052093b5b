package expression

import (
	"strconv"

	"tidemark/collate"
	"tidemark/index"
)

// The actions of ALTER INDEX.
const (
	ActionMove         = "move"          // to Nodes
	ActionReplicaCount = "replica_count" // NumReplica from now on
	ActionDropReplica  = "drop_replica"  // the one with ReplicaID
)

// AlterIndex is ALTER INDEX.
type AlterIndex struct {
	Name       string
	Keyspace   index.Keyspace
	Action     string
	Nodes      []string // of ActionMove, and where new replicas may be, of ActionReplicaCount
	NumReplica *int     // of ActionReplicaCount
	ReplicaID  *int     // of ActionDropReplica
}

func (*AlterIndex) statement() {}

// String returns the canonical text.
func (s *AlterIndex) String() string {
	b := appendName([]byte("ALTER INDEX "), s.Name)
	b = appendKeyspace(append(b, " ON "...), s.Keyspace)
	b = append(b, ` WITH {"action":`...)
	b = collate.AppendQuoted(b, []byte(s.Action))
	if s.NumReplica != nil {
		b = strconv.AppendInt(append(b, `, "num_replica":`...), int64(*s.NumReplica), 10)
	}
	if s.ReplicaID != nil {
		b = strconv.AppendInt(append(b, `, "replicaId":`...), int64(*s.ReplicaID), 10)
	}
	if s.Nodes != nil {
		b = append(b, `, "nodes":`...)
		for i, n := range s.Nodes {
			b = append(b, "[,"[min(i, 1)])
			b = collate.AppendQuoted(b, []byte(n))
		}
		b = append(b, ']')
	}
	return string(append(b, '}'))
}

// alter reads ALTER INDEX name ON bucket WITH {…}.
func (p *parser) alter() (Statement, error) {
	s := &AlterIndex{}
	primary := false
	if err := p.indexWords("ALTER", &primary); err != nil {
		return nil, err
	}
	var err error
	if primary && p.isWord("ON") {
		s.Name = PrimaryName
	} else if s.Keyspace, s.Name, err = p.indexPath(); err != nil {
		return nil, err
	}
	if s.Keyspace.Bucket == "" {
		if s.Keyspace, err = p.onKeyspace(); err != nil {
			return nil, err
		}
	}
	if err := p.usingGSI(); err != nil {
		return nil, err
	}
	if err := p.wantWord("WITH"); err != nil {
		return nil, err
	}
	at := p.tok
	if err := p.optionList(func(key token) error { return p.alterOption(s, key) }); err != nil {
		return nil, err
	}
	return s, p.alterWhole(s, at)
}

func (p *parser) alterOption(s *AlterIndex, key token) (err error) {
	switch key.value {
	case "action", "nodes", "num_replica", "replicaId":
		if err := p.colon(); err != nil {
			return err
		}
	}
	switch key.value {
	case "action":
		tok := p.tok
		if tok.kind != tokString {
			return p.unexpected("the action in quotes")
		}
		switch tok.value {
		case ActionMove, ActionReplicaCount, ActionDropReplica:
		default:
			return p.unknown(tok, "action", ActionMove, ActionReplicaCount, ActionDropReplica)
		}
		s.Action = tok.value
		return p.advance()
	case "nodes":
		s.Nodes, err = p.optionNames()
	case "num_replica":
		s.NumReplica, err = p.optionInt(0, MaxReplicas)
	case "replicaId":
		s.ReplicaID, err = p.optionInt(0, MaxReplicas)
	default:
		return p.unknown(key, "option", "action", "nodes", "num_replica", "replicaId")
	}
	return err
}

// alterWhole checks that the options are those of the action.
func (p *parser) alterWhole(s *AlterIndex, at token) error {
	for _, o := range [...]struct {
		action, option string
		given          bool
	}{{ActionMove, "nodes", s.Nodes != nil}, {ActionReplicaCount, "num_replica", s.NumReplica != nil},
		{ActionDropReplica, "replicaId", s.ReplicaID != nil}} {
		switch {
		case s.Action == "":
			return p.fail(at,
				`ALTER INDEX needs an action: {"action":"move","nodes":["…"]}, `+
					`{"action":"replica_count","num_replica":n} or {"action":"drop_replica","replicaId":n}`)
		case s.Action == o.action && !o.given:
			return p.fail(at, "the action %s needs %s", s.Action, o.option)
		case s.Action == ActionReplicaCount && o.option == "nodes":
		case s.Action != o.action && o.given:
			return p.fail(at, "%s goes with the action %s, not with %s", o.option, o.action, s.Action)
		}
	}
	return nil
}
